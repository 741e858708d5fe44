package devcluster

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

const fieldManager = "devcluster"

// Transform changes an object before it is applied, or says that it shall not be.
type Transform func(*unstructured.Unstructured) (keep bool, err error)

// Apply applies a stream of YAML documents in their order, server-side and as field manager "devcluster". A
// CustomResourceDefinition is waited for until it is established, so objects of its kind may follow. Objects of a
// namespaced kind that name no namespace go to "default". transform may be nil.
func (c *Cluster) Apply(ctx context.Context, documents []byte, transform Transform) error {
	objects, err := decode(documents)
	if err != nil {
		return err
	}
	for _, object := range objects {
		if transform != nil {
			keep, err := transform(object)
			if err != nil {
				return fmt.Errorf("%s: %w", describe(object), err)
			}
			if !keep {
				continue
			}
		}
		if err := c.applyOne(ctx, object); err != nil {
			return fmt.Errorf("apply %s: %w", describe(object), err)
		}
	}
	return nil
}

// decode splits a stream into its objects. Documents without content are skipped.
func decode(stream []byte) ([]*unstructured.Unstructured, error) {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(stream)))
	var objects []*unstructured.Unstructured
	for n := 1; ; n++ {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		// Strict: a key twice in one mapping is somebody's mistake.
		content := map[string]any{}
		if err := yaml.UnmarshalStrict(document, &content); err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		if len(content) == 0 {
			continue
		}
		object := &unstructured.Unstructured{Object: content}
		if object.GetKind() == "" || object.GetAPIVersion() == "" {
			return nil, fmt.Errorf("document %d: no apiVersion or kind", n)
		}
		objects = append(objects, object)
	}
}

func describe(object *unstructured.Unstructured) string {
	name := object.GetName()
	if namespace := object.GetNamespace(); namespace != "" {
		name = namespace + "/" + name
	}
	return object.GetKind() + " " + name
}

func (c *Cluster) applyOne(ctx context.Context, object *unstructured.Unstructured) error {
	resource, err := c.resource(object)
	if err != nil {
		return err
	}
	options := metav1.ApplyOptions{FieldManager: fieldManager, Force: true}
	if _, err := resource.Apply(ctx, object.GetName(), object, options); err != nil {
		return err
	}
	if object.GetKind() == "CustomResourceDefinition" {
		return c.awaitEstablished(ctx, resource, object.GetName())
	}
	return nil
}

// resource finds where an object of its kind goes. The mapper remembers what the API server offered; on a miss it is
// asked once more, since the kind may be of a definition applied just before.
func (c *Cluster) resource(object *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	kind := object.GroupVersionKind()
	mapping, err := c.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) {
		c.mapper.Reset()
		mapping, err = c.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	}
	if err != nil {
		return nil, err
	}
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return c.dynamic.Resource(mapping.Resource), nil
	}
	if object.GetNamespace() == "" {
		object.SetNamespace(metav1.NamespaceDefault)
	}
	return c.dynamic.Resource(mapping.Resource).Namespace(object.GetNamespace()), nil
}

// awaitEstablished returns when objects of a new kind can be created: the definition is established and discovery
// offers it, which comes a moment later.
func (c *Cluster) awaitEstablished(ctx context.Context, definitions dynamic.ResourceInterface, name string) error {
	return eventually(ctx, "CRD "+name+" to be established", func(ctx context.Context) (bool, error) {
		definition, err := definitions.Get(ctx, name, metav1.GetOptions{})
		if err != nil || !conditionTrue(definition, "Established") {
			return false, err
		}
		group, _, _ := unstructured.NestedString(definition.Object, "spec", "group")
		kind, _, _ := unstructured.NestedString(definition.Object, "spec", "names", "kind")
		c.mapper.Reset()
		_, err = c.mapper.RESTMapping(schema.GroupKind{Group: group, Kind: kind})
		return err == nil, err
	})
}

func conditionTrue(object *unstructured.Unstructured, conditionType string) bool {
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, condition := range conditions {
		if c, ok := condition.(map[string]any); ok && c["type"] == conditionType && c["status"] == "True" {
			return true
		}
	}
	return false
}
