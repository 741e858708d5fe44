// Command workload is all there is in the images of a development node's pods: it says which network interfaces and
// devices it has, runs for a while, and says when it ends.
//
//	workload [-run 5s] [-linger 20s] [-exit 3]   until SIGTERM, or for the time given
//	workload pause                               a pod's sandbox: until SIGTERM, without a word
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// devicesPrefix is that of the variables in which the device plugin names a container's devices.
const devicesPrefix = "DEVICES_"

// line is one of the two lines that a workload writes to its log; the first is its termination message too.
type line struct {
	Event      string              `json:"event"` // start, end
	Time       time.Time           `json:"time"`
	Interfaces []string            `json:"interfaces,omitempty"`
	Devices    map[string][]string `json:"devices,omitempty"`
}

func main() {
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	if len(os.Args) > 1 && os.Args[1] == "pause" {
		<-terminated
		return
	}
	code, err := run(os.Args[1:], terminated, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 2
	}
	os.Exit(code)
}

func run(args []string, terminated <-chan os.Signal, out io.Writer) (int, error) {
	flags := flag.NewFlagSet("workload", flag.ContinueOnError)
	limit := flags.Duration("run", 0, "end after this time; 0: run until SIGTERM")
	linger := flags.Duration("linger", 0, "go on for this time after SIGTERM")
	code := flags.Int("exit", 0, "exit code")
	if err := flags.Parse(args); err != nil {
		return 0, err
	}
	interfaces, err := interfaceNames()
	if err != nil {
		return 0, err
	}
	start := line{Event: "start", Time: time.Now(), Interfaces: interfaces, Devices: devices(os.Environ())}
	if err := write(out, start); err != nil {
		return 0, err
	}
	// Outside of a pod there is nowhere to leave it.
	if message, err := json.Marshal(start); err == nil {
		_ = os.WriteFile("/dev/termination-log", message, 0o644)
	}
	var timeUp <-chan time.Time
	if *limit > 0 {
		timeUp = time.After(*limit)
	}
	select {
	case <-timeUp:
	case <-terminated:
		<-time.After(*linger)
	}
	return *code, write(out, line{Event: "end", Time: time.Now()})
}

func write(out io.Writer, l line) error {
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s\n", text)
	return err
}

// interfaceNames are the pod's network interfaces without the loopback.
func interfaceNames() ([]string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("network interfaces: %w", err)
	}
	names := []string{}
	for _, i := range all {
		if i.Flags&net.FlagLoopback == 0 {
			names = append(names, i.Name)
		}
	}
	return names, nil
}

// devices are those that the device plugin named in the environment, by variable.
func devices(environment []string) map[string][]string {
	found := map[string][]string{}
	for _, variable := range environment {
		name, value, _ := strings.Cut(variable, "=")
		if pool, ours := strings.CutPrefix(name, devicesPrefix); ours {
			found[pool] = strings.Split(value, ",")
		}
	}
	return found
}
