package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRun(t *testing.T) {
	for name, tc := range map[string]struct {
		args      []string
		terminate time.Duration // after the start; 0: never
		want      time.Duration
		code      int
	}{
		"without SIGTERM it ends when its time is up":       {[]string{"-run", "5s"}, 0, 5 * time.Second, 0},
		"SIGTERM ends it before":                            {[]string{"-run", "5s"}, time.Second, time.Second, 0},
		"without a limit it waits for SIGTERM":              {nil, time.Hour, time.Hour, 0},
		"it lingers after SIGTERM":                          {[]string{"-linger", "20s"}, time.Second, 21 * time.Second, 0},
		"it must not linger when its time is up":            {[]string{"-run", "2s", "-linger", "20s"}, 0, 2 * time.Second, 0},
		"it fails on request":                               {[]string{"-run", "1s", "-exit", "3"}, 0, time.Second, 3},
		"its limit must not cut the time that it lingers":   {[]string{"-run", "5s", "-linger", "20s"}, 4 * time.Second, 24 * time.Second, 0},
		"it must not forget its exit code when it lingered": {[]string{"-linger", "1s", "-exit", "4"}, time.Second, 2 * time.Second, 4},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				terminated := make(chan os.Signal, 1)
				if tc.terminate > 0 {
					time.AfterFunc(tc.terminate, func() { terminated <- syscall.SIGTERM })
				}
				begun := time.Now()
				var out bytes.Buffer
				code, err := run(tc.args, terminated, &out)
				require.NoError(t, err)
				assert.Equal(t, tc.code, code)
				assert.Equal(t, tc.want, time.Since(begun))

				lines := strings.Split(strings.TrimSpace(out.String()), "\n")
				require.Len(t, lines, 2)
				var first, last line
				require.NoError(t, json.Unmarshal([]byte(lines[0]), &first))
				require.NoError(t, json.Unmarshal([]byte(lines[1]), &last))
				assert.Equal(t, "start", first.Event)
				assert.Equal(t, "end", last.Event)
				assert.NotContains(t, first.Interfaces, "lo")
			})
		})
	}
}

func TestBadArgumentsAreRefused(t *testing.T) {
	_, err := run([]string{"-run", "soon"}, nil, &bytes.Buffer{})
	require.ErrorContains(t, err, `"soon"`)
}

func TestDevices(t *testing.T) {
	assert.Equal(t, map[string][]string{"A_COM_VF": {"vf-1", "vf-2"}, "B_COM_PF": {"pf-0"}},
		devices([]string{"HOME=/", "DEVICES_A_COM_VF=vf-1,vf-2", "DEVICES_B_COM_PF=pf-0", "XDEVICES_C=1"}))
}
