// Tries the agent of a node of Kubernetes against the protocol code of Kubernetes and containerd.
//
// Owns the parts of a node and their order: an IOKernel and the agent as processes, a kubelet
// (kubelet.go) and a container runtime (runtime.go) in this one. Prints a line for each check and
// ends at the first that fails. All that it starts and makes ends with it: its folder, and its
// processes also if it is killed.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	core  = "tailwater.io/core"
	batch = "tailwater.io/batch-core"
)

// A signal: an interrupted run ends as one that fails, and its folder is removed.
var interrupted = make(chan os.Signal, 1)

// A failed check, or what kept one from being made.
type failure struct{ text string }

func fail(format string, words ...any) { panic(failure{fmt.Sprintf(format, words...)}) }

// Makes a check.
func same(what string, got, expected any) {
	if !reflect.DeepEqual(got, expected) {
		fail("%s:\n    expected %#v\n    got      %#v", what, expected, got)
	}
	fmt.Println("ok:", what)
}

// Waits until a value is there, at most a minute: each takes less than a second on an idle machine.
// `now` says what there is.
func until(what string, holds func() bool, now func() string) {
	for end := time.Now().Add(time.Minute); !holds(); {
		select {
		case <-interrupted:
			fail("interrupted")
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(end) {
			fail("%s: waited in vain: %s", what, now())
		}
	}
	fmt.Println("ok:", what)
}

// The parts of one node.
type node struct {
	folder   string // of sockets and logs
	programs string // of the built programs
	running  []*program
	log      *os.File // of the container runtime
}

type program struct {
	*exec.Cmd
	log string
}

func (n *node) socket() string { return filepath.Join(n.folder, "run/socket") }

// Starts a program, which ends with the calling thread: the main one. One with an environment of
// its own is a container's: the first process of a PID namespace.
func (n *node) start(name string, environment []string, arguments ...string) *program {
	command := exec.Command(filepath.Join(n.programs, name), arguments...)
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if environment != nil {
		command.Env = append(os.Environ(), environment...)
		command.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID
		if own := os.Geteuid(); own != 0 {
			command.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
			command.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: own, Size: 1}}
		}
	}
	p := &program{command, filepath.Join(n.folder, fmt.Sprintf("%s.%d.log", name, len(n.running)))}
	log, err := os.Create(p.log)
	if err != nil {
		fail("%v", err)
	}
	defer log.Close()
	command.Stdout, command.Stderr = log, log
	if err := command.Start(); err != nil {
		fail("%s does not start: %v", name, err)
	}
	n.running = append(n.running, p)
	return p
}

// Ends a program by a signal, unless it has ended, and by SIGKILL if it has not after a minute.
func (p *program) end(with syscall.Signal) {
	if p.ProcessState == nil {
		_ = p.Process.Signal(with)
		defer time.AfterFunc(time.Minute, func() { _ = p.Process.Kill() }).Stop()
		_ = p.Wait()
	}
}

func (p *program) said() string {
	text, _ := os.ReadFile(p.log)
	return string(text)
}

// Prints what programs said that may explain a failure.
func (n *node) explain() {
	for _, p := range n.running {
		fmt.Printf("--- %s\n%s", strings.Join(p.Args, " "), p.said())
	}
	text, _ := os.ReadFile(n.log.Name())
	fmt.Printf("--- the container runtime\n%s", text)
}

func (n *node) iokernel() *program {
	p := n.start("tailwater", nil, "iokernel", "--socket", n.socket(), "--core", "0", "--managed-cores", "1")
	until("an IOKernel answers", func() bool { return n.names() != nil }, p.said)
	return p
}

func (n *node) agent() *program {
	return n.start("tailwater-node", nil, "--iokernel", n.socket(), "--plugins", filepath.Join(n.folder, "plugins"),
		"--nri", n.nri(), "--window", "1")
}

func (n *node) nri() string { return filepath.Join(n.folder, "nri.sock") }

// Returns the names of the IOKernel's programs with their guaranteed cores; nil without an IOKernel.
func (n *node) names() map[string]int {
	text, err := exec.Command(filepath.Join(n.programs, "tailwater"), "stats", "--iokernel", n.socket(), "--json").Output()
	if err != nil {
		return nil
	}
	var statistics struct {
		Runtimes []struct {
			Name       string
			Guaranteed int
		}
	}
	if json.NewDecoder(bytes.NewReader(text)).Decode(&statistics) != nil {
		return nil
	}
	names := map[string]int{}
	for _, program := range statistics.Runtimes {
		names[program.Name] = program.Guaranteed
	}
	return names
}

func (n *node) try() {
	kernel := n.iokernel()
	kubelet := startKubelet(filepath.Join(n.folder, "plugins"))
	containers := startRuntime(n.nri(), n.log)
	agent := n.agent()

	kubelet.offers(core, 1, 1)
	kubelet.offers(batch, 1, 1)
	kubelet.registered()
	service, job := kubelet.allocates(n.socket())
	containers.connected("the agent is configured and synchronized", 1)
	containers.starts()
	named := containers.creates(service, job)
	n.registers(append(service.env, named...), kubelet)

	fmt.Println("--- the kubelet starts again")
	kubelet.stop()
	kubelet = startKubelet(filepath.Join(n.folder, "plugins"))
	kubelet.offers(core, 1, 1)
	kubelet.offers(batch, 1, 1)
	same("each resource was registered once", kubelet.registrations(), map[string]int{core: 1, batch: 1})

	fmt.Println("--- the container runtime starts again, with more containers than a message holds")
	containers.stop()
	containers = startRuntime(n.nri(), n.log)
	containers.connected("the agent connects again and is synchronized in parts", 1)
	containers.leavesAlone()

	fmt.Println("--- the agent is killed")
	agent.end(syscall.SIGKILL)
	kubelet.gone(core)
	kubelet.gone(batch)
	agent = n.agent()
	kubelet.offers(core, 1, 1)
	kubelet.offers(batch, 1, 1)
	containers.connected("the next agent is synchronized", 2)

	fmt.Println("--- the IOKernel is killed")
	kernel.end(syscall.SIGKILL)
	kubelet.offers(core, 0, 1)
	kubelet.offers(batch, 0, 1)
	containers.keepsCores()
	n.iokernel()
	kubelet.offers(core, 1, 1)
	kubelet.offers(batch, 1, 1)

	fmt.Println("--- the agent is told to end")
	agent.end(syscall.SIGTERM)
	same("it ends without an error", agent.ProcessState.ExitCode(), 0)
	kubelet.gone(core)
	kubelet.gone(batch)
	left, _ := filepath.Glob(filepath.Join(n.folder, "plugins/tailwater*"))
	same("it leaves no socket", len(left), 0)
	containers.stop()
	kubelet.stop()
}

// A program with the environment of a container registers, and ends when its node is drained, which
// is SIGTERM to each pod, and when it is killed.
func (n *node) registers(environment []string, kubelet *kubelet) {
	for _, with := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		service := n.start("tailwater-spin", environment)
		until("a service registers by the environment that it is given", func() bool {
			return reflect.DeepEqual(n.names(), map[string]int{"shop/web-1/web": 1})
		}, func() string { return fmt.Sprint(n.names(), service.said()) })
		kubelet.offers(core, 1, 1) // The kubelet counts what its pods have.
		service.end(with)
		if with == syscall.SIGTERM {
			same("it ends in order when its node is drained", service.ProcessState.ExitCode(), 0)
		}
		until(fmt.Sprint("its core is free after it was ", with), func() bool { return len(n.names()) == 0 },
			func() string { return fmt.Sprint(n.names()) })
	}
}

// Makes all checks in a folder; returns what failed.
func try(programs string) (err error) {
	// Sockets' paths have 107 characters at most: too few for some TMPDIR.
	folder, err := os.MkdirTemp("/tmp", "tailwater-cluster-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	for _, inner := range []string{"run", "plugins"} {
		if err := os.Mkdir(filepath.Join(folder, inner), 0o700); err != nil {
			return err
		}
	}
	log, err := os.Create(filepath.Join(folder, "runtime.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	n := &node{folder: folder, programs: programs, log: log}
	defer func() {
		if failed, is := recover().(failure); is {
			n.explain()
			err = errors.New(failed.text)
		}
		for _, p := range n.running {
			p.end(syscall.SIGTERM)
		}
	}()
	n.try()
	return nil
}

func main() {
	// Programs end with the thread that starts them.
	runtime.LockOSThread()
	signal.Notify(interrupted, syscall.SIGINT, syscall.SIGTERM)
	if err := try(os.Args[1]); err != nil {
		fmt.Println("FAILED:", err)
		os.Exit(1)
	}
}
