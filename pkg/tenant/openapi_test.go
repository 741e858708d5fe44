package tenant

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// TestOpenAPIAgreesWithTheTypes keeps the document and the code from drifting apart.
func TestOpenAPIAgreesWithTheTypes(t *testing.T) {
	var document struct {
		Paths      map[string]map[string]any `json:"paths"`
		Components struct {
			Schemas map[string]struct {
				Required   []string       `json:"required"`
				Properties map[string]any `json:"properties"`
			} `json:"schemas"`
		} `json:"components"`
	}
	require.NoError(t, yaml.Unmarshal(OpenAPI, &document))
	for name, value := range map[string]any{
		"Request": Request{}, "EnsureRequest": EnsureRequest{}, "Network": Network{}, "Allocation": Allocation{},
		"AllocationList": AllocationList{}, "Problem": Problem{},
	} {
		schema, ok := document.Components.Schemas[name]
		require.True(t, ok, name)
		var fields, required []string
		for _, field := range reflect.VisibleFields(reflect.TypeOf(value)) {
			tag, options, _ := strings.Cut(field.Tag.Get("json"), ",")
			fields = append(fields, tag)
			if options != "omitempty" {
				required = append(required, tag)
			}
		}
		var properties []string
		for property := range schema.Properties {
			properties = append(properties, property)
		}
		assert.ElementsMatch(t, properties, fields, name)
		assert.ElementsMatch(t, schema.Required, required, name)
	}
	var operations []string
	for _, path := range document.Paths {
		for _, operation := range path {
			if o, ok := operation.(map[string]any); ok {
				operations = append(operations, o["operationId"].(string))
			}
		}
	}
	slices.Sort(operations)
	assert.Equal(t, []string{opEnsure, opGet, opHealthy, opList, opRelease}, operations)
}

// TestOpenAPIReferencesResolve walks the whole document.
func TestOpenAPIReferencesResolve(t *testing.T) {
	var document map[string]any
	require.NoError(t, yaml.UnmarshalStrict(OpenAPI, &document))
	references := 0
	var walk func(node any)
	walk = func(node any) {
		switch node := node.(type) {
		case []any:
			for _, child := range node {
				walk(child)
			}
		case map[string]any:
			if reference, ok := node["$ref"].(string); ok {
				references++
				assert.True(t, resolves(document, reference), reference)
			}
			for _, child := range node {
				walk(child)
			}
		}
	}
	walk(document)
	assert.Greater(t, references, 30)
}

func resolves(document map[string]any, reference string) bool {
	path, ok := strings.CutPrefix(reference, "#/")
	if !ok {
		return false
	}
	for step := range strings.SplitSeq(path, "/") {
		if document, ok = document[step].(map[string]any); !ok {
			return false
		}
	}
	return true
}
