package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestHierarchies(t *testing.T) {
	for name, tc := range map[string]struct {
		mounts string
		want   []hierarchy
	}{
		"a host with version 2 has one": {
			"29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 none rw,nsdelegate,memory_recursiveprot\n",
			[]hierarchy{{"/sys/fs/cgroup", "cgroup2", ""}},
		},
		"a hybrid host has one for each controller, and version 2 beside them": {
			"31 23 0:28 / /sys/fs/cgroup rw - tmpfs none rw,mode=755\n" +
				"32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:1 - cgroup none rw,cpu,cpuacct\n" +
				"41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 none rw\n",
			[]hierarchy{{"/sys/fs/cgroup/cpu,cpuacct", "cgroup", "cpu,cpuacct"}, {"/sys/fs/cgroup/unified", "cgroup2", ""}},
		},
		"a named one has no controller, and its release agent is not ours to set": {
			"40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup none rw,xattr,release_agent=/lib/systemd/agent,name=systemd\n",
			[]hierarchy{{"/sys/fs/cgroup/systemd", "cgroup", "xattr,name=systemd,none"}},
		},
		"other mounts must not be taken for one": {
			"23 1 8:1 / / rw - ext4 /dev/vda rw\n24 23 0:5 / /home/cgroup rw - tmpfs cgroup rw\n", nil,
		},
		"lines that are cut must not be read": {"32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup\nx\n\n", nil},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, hierarchies(tc.mounts)) })
	}
}
