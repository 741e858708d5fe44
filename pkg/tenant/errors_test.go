package tenant

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
)

func TestErrorTextFitsAnEvent(t *testing.T) {
	foreign := "first\nsecond\x00\x1b[31m\u202e reversed \xff" + strings.Repeat("länger ", 1<<16)
	s, _ := server(t, reply(422, Problem{Reason: foreign, Detail: foreign}))
	_, err := newClient(t, quick(s.URL)).Ensure(t.Context(), testUID, testAsk)
	text := err.Error()
	assert.LessOrEqual(t, len(text), maxErrorBytes)
	assert.True(t, utf8.ValidString(text))
	for _, r := range text {
		assert.False(t, unicode.IsControl(r) || unicode.Is(unicode.Cf, r), "%q", r)
	}
	assert.Contains(t, text, "first second")
	assert.True(t, strings.HasSuffix(text, "…"))
}

func TestPredicatesAreFalseForOtherErrors(t *testing.T) {
	for _, err := range []error{nil, errors.New("other")} {
		assert.False(t, IsConflict(err))
		assert.False(t, IsFinal(err))
		assert.False(t, IsNotFound(err))
		assert.False(t, IsUnavailable(err))
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	tests := []struct {
		name, header string
		want         time.Duration
	}{
		{"seconds are read", "7", 7 * time.Second},
		{"a date is read", now.Add(9 * time.Second).Format(http.TimeFormat), 9 * time.Second},
		{"a date of the past is no wait", now.Add(-time.Hour).Format(http.TimeFormat), 0},
		{"negative seconds are no wait", "-3", 0},
		{"an absurd number is bounded", "9223372036854775807", maxRetryAfter},
		{"a number past 64 bits counts as absent", "99999999999999999999", 0},
		{"nonsense counts as absent", "soon", 0},
		{"absent is absent", "", 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			assert.Equal(t, test.want, retryAfter(http.Header{"Retry-After": {test.header}}, now))
		})
	}
}

func TestPause(t *testing.T) {
	policy := retryPolicy{interval: 500 * time.Millisecond, maxRetryAfter: 2 * time.Second, now: time.Now}
	tests := []struct {
		name   string
		status int
		header string
		want   time.Duration
	}{
		{"without a header the interval is waited", 503, "", 500 * time.Millisecond},
		{"a 503's Retry-After is honoured", 503, "1", time.Second},
		{"a 429's Retry-After is honoured", 429, "1", time.Second},
		{"a long Retry-After is capped", 429, "60", 2 * time.Second},
		{"a zero Retry-After must not make a busy loop", 503, "0", 500 * time.Millisecond},
		{"a 500's Retry-After is ignored", 500, "1", 500 * time.Millisecond},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			resp := &http.Response{StatusCode: test.status, Header: http.Header{"Retry-After": {test.header}}}
			assert.Equal(t, test.want, policy.backoff(0, 0, 0, resp))
		})
	}
	assert.Equal(t, 500*time.Millisecond, policy.pause(nil), "no answer at all")
}
