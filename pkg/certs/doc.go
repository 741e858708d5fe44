// Package certs keeps the webhook's serving certificate in a Secret, and the webhook configuration's caBundle in step
// with it, so that an API server never meets a certificate that it does not trust yet.
//
// Two parts meet only in those two objects. Every replica has a Source: it serves the Secret's certificate, and a new
// one only once the caBundle trusts it. The leader has a Keeper: it renews what is in the Secret, and keeps the old CA
// beside the new one in the caBundle as long as a replica may serve a certificate by the old one.
package certs
