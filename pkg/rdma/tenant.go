package rdma

// TenantOf returns the tenant that owns a namespace: the one that its label names, or the namespace itself.
func TenantOf(namespace string, labels map[string]string) string {
	if tenant := labels[TenantLabel]; tenant != "" {
		return tenant
	}
	return namespace
}
