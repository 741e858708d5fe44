package rdma_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"tenant.network/tenant-webhook/pkg/rdma"
)

func TestParseIntentAccepts(t *testing.T) {
	for _, tc := range []struct {
		name        string
		annotations map[string]string
		want        rdma.Intent
	}{
		{"no annotations are no intent", nil, nil},
		{"other annotations are no intent", map[string]string{"rdma.VF": "1", "rdma": "1"}, nil},
		{"one virtual function", map[string]string{"rdma.vf": "1"}, rdma.Intent{{rdma.VF, 1}}},
		{"one physical function", map[string]string{"rdma.pf": "1"}, rdma.Intent{{rdma.PF, 1}}},
		{"ten is no leading zero", map[string]string{"rdma.vf": "10"}, rdma.Intent{{rdma.VF, 10}}},
		{"the maximum itself", map[string]string{"rdma.vf": "64"}, rdma.Intent{{rdma.VF, 64}}},
		{"both, vf first", map[string]string{"rdma.pf": "2", "rdma.vf": "1"}, rdma.Intent{{rdma.VF, 1}, {rdma.PF, 2}}},
		{"the maximum holds for each type", map[string]string{"rdma.pf": "64", "rdma.vf": "64"}, rdma.Intent{{rdma.VF, 64}, {rdma.PF, 64}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, errs := rdma.ParseIntent(tc.annotations, 64)
			require.Empty(t, errs)
			assert.Equal(t, tc.want, got)
			assert.Equal(t, len(tc.want) > 0, rdma.HasIntent(tc.annotations))
		})
	}
}

func TestParseIntentMustNotAccept(t *testing.T) {
	for _, text := range []string{
		"", " ", "0", "00", "01", "-1", "+1", "-0", "1.5", "1.0", "1,0", "1_0", "1k", "1Ki", "3000m", "1e3", "1E3", "1e0", "0x10", "0b1", "0o7",
		" 1", "1 ", " 1 ", "1\n", "\t1", "1\x00", "two", "1;2", "1 2", "NaN", "Inf", "true", "null", `"1"`, "１", "١", "1\u00a0", "\ufeff1", "²",
		"65", "9223372036854775807", "9223372036854775808", "18446744073709551617", strings.Repeat("9", 60),
	} {
		t.Run(strconv.Quote(text), func(t *testing.T) {
			for _, key := range []string{"rdma.vf", "rdma.pf"} {
				intent, errs := rdma.ParseIntent(map[string]string{key: text}, 64)
				require.Empty(t, intent)
				require.Len(t, errs, 1)
				assert.Equal(t, field.ErrorTypeInvalid, errs[0].Type)
				assert.Equal(t, "metadata.annotations["+key+"]: Invalid value: "+strconv.Quote(text)+
					`: must be a whole number of devices from 1 to 64, digits only, such as "1" (no sign, space, fraction or suffix)`, errs[0].Error())
				assert.True(t, rdma.HasIntent(map[string]string{key: text}), "a wrong count is an intent all the same")
			}
		})
	}
}

func TestParseIntentNamesAllFaultsAtOnce(t *testing.T) {
	intent, errs := rdma.ParseIntent(map[string]string{"rdma.vf": "1k", "rdma.pf": "-1"}, 8)
	require.Empty(t, intent)
	require.Len(t, errs, 2)
	assert.Equal(t, []string{"metadata.annotations[rdma.vf]", "metadata.annotations[rdma.pf]"}, []string{errs[0].Field, errs[1].Field})
	assert.Contains(t, errs[0].Error(), "from 1 to 8")
}

func TestParseIntentMustNotRepeatALongText(t *testing.T) {
	for name, unit := range map[string]string{
		"letters": "x", "digits": "9", "runes of two bytes": "é", "runes of three bytes": "€", "runes of four bytes": "𝟙", "no runes at all": "\x80",
	} {
		t.Run(name, func(t *testing.T) {
			for shift := range 4 { // so that the bound falls on every byte of a rune
				text := strings.Repeat("1", shift) + "-" + strings.Repeat(unit, 200<<10/len(unit))
				_, errs := rdma.ParseIntent(map[string]string{"rdma.vf": text}, 64)
				require.Len(t, errs, 1)
				quoted, ok := errs[0].BadValue.(string)
				require.True(t, ok)
				assert.LessOrEqual(t, len(quoted), 83)
				assert.True(t, strings.HasSuffix(quoted, "..."), "that it was cut must show")
				assert.True(t, strings.HasPrefix(text, strings.TrimSuffix(quoted, "...")))
				if utf8.ValidString(text) {
					assert.True(t, utf8.ValidString(quoted), "no rune is cut in two")
				}
			}
		})
	}
}

func FuzzParseIntent(f *testing.F) {
	for _, text := range []string{"1", "64", "65", "0", "01", "1k", " 1 ", "-1", "0x10", "9223372036854775808", "1\n", "\xff", "１"} {
		f.Add(text, int64(64))
	}
	f.Add("7", int64(0))
	f.Add("9223372036854775807", int64(9223372036854775807))
	accepted := regexp.MustCompile(`^[1-9][0-9]*$`)
	f.Fuzz(func(t *testing.T, text string, limit int64) {
		intent, errs := rdma.ParseIntent(map[string]string{"rdma.vf": text}, limit)
		count, err := strconv.ParseInt(text, 10, 64)
		if want := err == nil && accepted.MatchString(text) && count <= limit; want {
			require.Empty(t, errs)
			require.Equal(t, rdma.Intent{{rdma.VF, count}}, intent)
			return
		}
		require.Empty(t, intent)
		require.Len(t, errs, 1)
		require.Less(t, len(errs[0].Error()), 1200, "an error is bounded however it is quoted")
	})
}
