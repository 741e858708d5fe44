package certs

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// writeTimeout bounds one look at the objects with its writes.
const writeTimeout = 20 * time.Second

// Config says where the certificate and its CA are kept.
type Config struct {
	// Client reads from memory and patches. Default: the manager's.
	Client client.Client
	// Namespace is that of the Secret and of the Service.
	Namespace string
	// Secret has tls.crt, tls.key and ca.crt, and ca.key where the Keeper renews them.
	Secret string
	// Service is what API servers call.
	Service string
	// WebhookConfiguration is the MutatingWebhookConfiguration that calls it.
	WebhookConfiguration string
	Clock                clock.PassiveClock
	// Registerer gets the metrics; it may be nil.
	Registerer prometheus.Registerer
}

// CacheOptions restricts what a manager's cache watches to the two objects, which is all that the permissions allow. A
// Config that names none restricts nothing.
func (c Config) CacheOptions() map[client.Object]cache.ByObject {
	if c.Secret == "" {
		return nil
	}
	return map[client.Object]cache.ByObject{
		&corev1.Secret{}: {Namespaces: map[string]cache.Config{c.Namespace: {FieldSelector: named(c.Secret)}}},
		&admissionregistrationv1.MutatingWebhookConfiguration{}: {Field: named(c.WebhookConfiguration)},
	}
}

func named(name string) fields.Selector { return fields.OneTermEqualSelector("metadata.name", name) }

// dnsName is the name by which API servers verify the certificate (k8s.io/apiserver/pkg/util/webhook, ClientManager).
func (c Config) dnsName() string { return c.Service + "." + c.Namespace + ".svc" }

// objects are the two that the parts meet in; nil stands for one that does not exist.
type objects struct {
	secret        *corev1.Secret
	configuration *admissionregistrationv1.MutatingWebhookConfiguration
}

func (c Config) read(ctx context.Context) (objects, error) {
	o := objects{secret: &corev1.Secret{}, configuration: &admissionregistrationv1.MutatingWebhookConfiguration{}}
	err := c.Client.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.Secret}, o.secret)
	switch {
	case apierrors.IsNotFound(err):
		o.secret = nil
	case err != nil:
		return o, fmt.Errorf("reading Secret %s/%s: %w", c.Namespace, c.Secret, err)
	}
	err = c.Client.Get(ctx, client.ObjectKey{Name: c.WebhookConfiguration}, o.configuration)
	switch {
	case apierrors.IsNotFound(err):
		o.configuration = nil
	case err != nil:
		return o, fmt.Errorf("reading MutatingWebhookConfiguration %s: %w", c.WebhookConfiguration, err)
	}
	return o, nil
}

// data is the Secret's.
func (o objects) data() map[string][]byte {
	if o.secret == nil {
		return nil
	}
	return o.secret.Data
}

// caBundles are those of the webhooks that call the Service, by the webhook's name.
func (c Config) caBundles(o objects) map[string][]byte {
	bundles := map[string][]byte{}
	if o.configuration == nil {
		return bundles
	}
	for i := range o.configuration.Webhooks {
		hook := &o.configuration.Webhooks[i]
		if s := hook.ClientConfig.Service; s != nil && s.Namespace == c.Namespace && s.Name == c.Service {
			bundles[hook.Name] = hook.ClientConfig.CABundle
		}
	}
	return bundles
}

// setup runs a reconciler whenever one of the two objects changes.
func (c Config) setup(mgr ctrl.Manager, name string, onLeader bool, r reconcile.Reconciler) error {
	key := types.NamespacedName{Namespace: c.Namespace, Name: c.Secret}
	ours := predicate.NewPredicateFuncs(func(object client.Object) bool { return client.ObjectKeyFromObject(object) == key })
	toSecret := func(_ context.Context, object client.Object) []reconcile.Request {
		if object.GetName() != c.WebhookConfiguration {
			return nil
		}
		return []reconcile.Request{{NamespacedName: key}}
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named(name).
		For(&corev1.Secret{}, builder.WithPredicates(ours)).
		Watches(&admissionregistrationv1.MutatingWebhookConfiguration{}, handler.EnqueueRequestsFromMapFunc(toSecret)).
		WithOptions(controller.Options{NeedLeaderElection: &onLeader}).
		Complete(r)
}
