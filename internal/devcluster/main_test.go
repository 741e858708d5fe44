package devcluster

import (
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"
)

// childMode makes the test binary play a component: tests need children that end, hang and answer as told.
const childMode = "DEVCLUSTER_TEST_CHILD"

// childIsUp is what a child prints once it catches SIGTERM: sent earlier, it would end the child before its last words.
const childIsUp = "up and catching signals"

func TestMain(m *testing.M) {
	if mode := os.Getenv(childMode); mode != "" {
		os.Exit(playComponent(mode))
	}
	os.Exit(m.Run())
}

func playComponent(mode string) int {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	fmt.Println(childIsUp)
	switch mode {
	case "run": // ends in order; the file says when
		<-stop
		appendTo(os.Getenv("STOPPED"), os.Getenv("NAME")+"\n")
		return 0
	case "stubborn": // does not mind SIGTERM
		for range stop {
			fmt.Println("no")
		}
	case "fail":
		fmt.Println("unknown flag: --nonsense")
		return 3
	case "serve": // answers readiness
		server := &http.Server{Addr: os.Getenv("ADDR"), ReadHeaderTimeout: time.Second}
		go func() { <-stop; _ = server.Close() }()
		_ = server.ListenAndServe()
		return 0
	}
	return 1
}

func appendTo(path, text string) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	defer f.Close() //nolint:errcheck // a test's child
	_, _ = f.WriteString(text)
}
