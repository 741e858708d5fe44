package certs

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// checkPeriod is how often the age of the certificates is looked at.
const checkPeriod = time.Hour

// Keeper renews the Secret's certificates and writes the caBundle.
type Keeper struct {
	cfg    Config
	rotate bool
	// What follows is used by Reconcile alone, which does not run concurrently.
	issuer  *issuer
	overlap overlap
}

// NewKeeper returns a keeper, to be set up with a manager. Without rotate somebody else, such as cert-manager, makes the
// certificates; the caBundle then follows the Secret's ca.crt.
func NewKeeper(cfg Config, rotate bool) *Keeper {
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	return &Keeper{cfg: cfg, rotate: rotate, issuer: newIssuer(cfg.dnsName())}
}

// SetupWithManager makes the leader watch: with one writer no two clocks disagree about what has expired.
func (k *Keeper) SetupWithManager(mgr ctrl.Manager) error {
	if k.cfg.Client == nil {
		k.cfg.Client = mgr.GetClient()
	}
	return k.cfg.setup(mgr, "certificate-keeper", true, k)
}

// Reconcile implements reconcile.Reconciler for the Secret and the webhook configuration alike. The Secret is written
// before the caBundle: replicas wait for the caBundle.
func (k *Keeper) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	o, err := k.cfg.read(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	if o.secret == nil {
		return reconcile.Result{}, fmt.Errorf("no Secret %s/%s; create it empty, or apply the manifests again", k.cfg.Namespace, k.cfg.Secret)
	}
	caBundles, now := k.cfg.caBundles(o), k.cfg.Clock.Now()
	present := union(caBundles)
	if k.rotate {
		if what := k.issuer.missing(o.data(), present, now); what != renewNothing {
			return reconcile.Result{}, k.renew(ctx, o, what, now) // its change brings us back
		}
	}
	own := parseBundle(o.data()[caCertKey])
	pair, err := parsePair(o.data(), k.cfg.dnsName(), now)
	works := err == nil && own.trusts(pair, k.cfg.dnsName(), now)
	next, again := k.overlap.next(own, works, present, now)
	if len(own) > 0 {
		if err := k.write(ctx, o, caBundles, next.encode()); err != nil {
			return reconcile.Result{}, err
		}
	}
	if again == 0 {
		again = checkPeriod
	}
	return reconcile.Result{RequeueAfter: min(again, checkPeriod)}, nil
}

func (k *Keeper) renew(ctx context.Context, o objects, what renewal, now time.Time) error {
	data, err := k.issuer.renew(o.data(), what, now)
	if err != nil {
		return fmt.Errorf("renewing the %v: %w", what, err)
	}
	renewed := o.secret.DeepCopy()
	renewed.Data = data
	err = k.cfg.Client.Patch(ctx, renewed, client.MergeFromWithOptions(o.secret, client.MergeFromWithOptimisticLock{}))
	if err := notChanged(err); err != nil {
		return fmt.Errorf("writing the %v into Secret %s/%s: %w", what, k.cfg.Namespace, k.cfg.Secret, err)
	}
	klog.FromContext(ctx).Info("renewed", "what", what, "secret", klog.KObj(o.secret))
	return nil
}

// write sets the caBundle of all webhooks. Only that field is sent, so that it has an owner of its own and no other is
// touched.
func (k *Keeper) write(ctx context.Context, o objects, caBundles map[string][]byte, text []byte) error {
	type hook struct {
		Name         string `json:"name"`
		ClientConfig struct {
			CABundle []byte `json:"caBundle"`
		} `json:"clientConfig"`
	}
	var hooks []hook
	for _, name := range slices.Sorted(maps.Keys(caBundles)) {
		if !bytes.Equal(caBundles[name], text) {
			h := hook{Name: name}
			h.ClientConfig.CABundle = text
			hooks = append(hooks, h)
		}
	}
	if len(hooks) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": o.configuration.ResourceVersion},
		"webhooks": hooks,
	})
	if err != nil {
		return fmt.Errorf("encoding a patch: %w", err)
	}
	err = k.cfg.Client.Patch(ctx, o.configuration.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, patch))
	if err := notChanged(err); err != nil {
		return fmt.Errorf("writing the caBundle of MutatingWebhookConfiguration %s: %w", k.cfg.WebhookConfiguration, err)
	}
	klog.FromContext(ctx).Info("caBundle written", "webhookConfiguration", o.configuration.Name, "certificates", len(parseBundle(text)))
	return nil
}

// notChanged passes over what says that the memory was behind, or the object has gone: the news is on its way.
func notChanged(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// union is every CA that some webhook trusts.
func union(caBundles map[string][]byte) bundle {
	var all []byte
	for _, name := range slices.Sorted(maps.Keys(caBundles)) {
		all = append(append(all, caBundles[name]...), '\n')
	}
	return parseBundle(all)
}
