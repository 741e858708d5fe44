package tenant

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"time"
)

// Defaults of Config.
const (
	DefaultURL           = "http://tenant-controller:8088"
	DefaultTimeout       = 2 * time.Second
	DefaultRetries       = 2
	DefaultRetryInterval = 500 * time.Millisecond
	DefaultMaxRetryAfter = 2 * time.Second
	DefaultMaxBodyBytes  = 4 << 20
)

// Config says where the tenant-controller is and how long to try. Its zero value is the default of every field.
type Config struct {
	// URL is the base of the API, http or https, with an optional path prefix. Empty: DefaultURL.
	URL string
	// Timeout bounds one attempt, from dialling to the last byte of the body. 0: DefaultTimeout.
	Timeout time.Duration
	// Retries is the number of attempts after the first. 0: DefaultRetries; negative: none.
	Retries int
	// RetryInterval is the pause between attempts. 0: DefaultRetryInterval.
	RetryInterval time.Duration
	// MaxRetryAfter caps the pause that a Retry-After header asks for. 0: DefaultMaxRetryAfter.
	MaxRetryAfter time.Duration
	// MaxBodyBytes bounds a reply; a longer one is an error. 0: DefaultMaxBodyBytes.
	MaxBodyBytes int64
	// TokenFile holds a bearer token. It is read again for every attempt, so it may rotate. Empty: no token.
	TokenFile string
	// CAFile holds the CA certificates (PEM) that the server is verified by, instead of the system's. It may rotate.
	CAFile string
	// CertFile and KeyFile (PEM) are the client's certificate, read again for every handshake. Both or neither.
	CertFile string
	KeyFile  string
}

// ConfigFromEnvironment reads TENANT_CONTROLLER_URL and TENANT_CONTROLLER_{TOKEN,CA,CERT,KEY}_FILE by getenv, which
// is os.Getenv but in tests. Everything else is left at its default.
func ConfigFromEnvironment(getenv func(string) string) Config {
	return Config{
		URL:       getenv("TENANT_CONTROLLER_URL"),
		TokenFile: getenv("TENANT_CONTROLLER_TOKEN_FILE"),
		CAFile:    getenv("TENANT_CONTROLLER_CA_FILE"),
		CertFile:  getenv("TENANT_CONTROLLER_CERT_FILE"),
		KeyFile:   getenv("TENANT_CONTROLLER_KEY_FILE"),
	}
}

// withDefaults returns the config with every zero value replaced.
func (c Config) withDefaults() Config {
	if c.URL == "" {
		c.URL = DefaultURL
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.Retries == 0 {
		c.Retries = DefaultRetries
	}
	c.Retries = max(c.Retries, 0)
	if c.RetryInterval == 0 {
		c.RetryInterval = DefaultRetryInterval
	}
	if c.MaxRetryAfter == 0 {
		c.MaxRetryAfter = DefaultMaxRetryAfter
	}
	if c.MaxBodyBytes == 0 {
		c.MaxBodyBytes = DefaultMaxBodyBytes
	}
	return c
}

// MaxRetries keeps a typing error from turning one call into minutes of silence.
const MaxRetries = 10

// maxMaxBodyBytes keeps one from turning one reply into the whole memory.
const maxMaxBodyBytes = 1 << 30

// validate returns the base URL, or all that is wrong.
func (c Config) validate() (*url.URL, error) {
	base, err := parseBase(c.URL)
	errs := []error{err}
	for _, field := range []struct {
		name  string
		value time.Duration
	}{{"Timeout", c.Timeout}, {"RetryInterval", c.RetryInterval}, {"MaxRetryAfter", c.MaxRetryAfter}} {
		if field.value < 0 {
			errs = append(errs, fmt.Errorf("%s: must not be negative, is %q", field.name, field.value))
		}
	}
	if c.Retries > MaxRetries {
		errs = append(errs, fmt.Errorf("%s: at most %d, is %d", "Retries", MaxRetries, c.Retries))
	}
	if c.MaxBodyBytes < 0 || c.MaxBodyBytes > maxMaxBodyBytes {
		errs = append(errs, fmt.Errorf("MaxBodyBytes: from 1 to %d, is %d", maxMaxBodyBytes, c.MaxBodyBytes))
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		errs = append(errs, fmt.Errorf("CertFile and KeyFile: both or neither, are %q and %q", c.CertFile, c.KeyFile))
	}
	if base != nil && base.Scheme != "https" && (c.CAFile != "" || c.CertFile != "") {
		errs = append(errs, fmt.Errorf("URL: CAFile and CertFile need https, is %q", base.Redacted()))
	}
	return base, errors.Join(append(errs, c.validateFiles()...)...)
}

// validateFiles reads each file once, so that a wrong path shows at start and not at the first pod.
func (c Config) validateFiles() []error {
	var errs []error
	if c.TokenFile != "" {
		if _, err := readToken(c.TokenFile); err != nil {
			errs = append(errs, fmt.Errorf("TokenFile: %w", err))
		}
	}
	if c.CAFile != "" {
		if _, err := readCertPool(c.CAFile); err != nil {
			errs = append(errs, fmt.Errorf("CAFile: %w", err))
		}
	}
	if c.CertFile != "" && c.KeyFile != "" {
		if _, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile); err != nil {
			errs = append(errs, fmt.Errorf("CertFile %q, KeyFile %q: %w", c.CertFile, c.KeyFile, err))
		}
	}
	return errs
}

// parseBase accepts what a path can be appended to without surprises.
func parseBase(text string) (*url.URL, error) {
	base, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("URL: is no URL: %q", text) // err would quote a password
	}
	wrong := ""
	switch {
	case base.Scheme != "http" && base.Scheme != "https":
		wrong = "must start with http:// or https://"
	case base.Hostname() == "":
		wrong = "has no host"
	case base.User != nil:
		wrong = "must not carry a user or password; use TokenFile"
	case base.RawQuery != "" || base.ForceQuery || base.Fragment != "":
		wrong = "must have neither query nor fragment"
	}
	if wrong != "" {
		return nil, fmt.Errorf("URL: %s: %q", wrong, base.Redacted())
	}
	return base, nil
}
