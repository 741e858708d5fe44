package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

func main() {
	testing.Init()
	nodes := flag.String("nodes", "100,1000,5000,10000", "numbers of nodes")
	pods := flag.String("pods", "1000,10000,50000,200000", "numbers of pods that hold a device")
	flag.Parse()
	if err := run(*nodes, *pods); err != nil {
		fmt.Fprintln(os.Stderr, "ledger:", err)
		os.Exit(1)
	}
}

func run(nodesText, podsText string) error {
	nodes, errNodes := numbers("-nodes", nodesText)
	pods, errPods := numbers("-pods", podsText)
	if err := errors.Join(errNodes, errPods); err != nil {
		return err
	}
	for _, n := range nodes {
		for _, p := range pods {
			for _, r := range measure(n, p) {
				fmt.Println(r)
			}
		}
	}
	return nil
}

func numbers(name, text string) ([]int, error) {
	var all []int
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%s: %q must be whole numbers of at least 1, separated by commas", name, text)
		}
		all = append(all, n)
	}
	return all, nil
}
