package main

// A container runtime, by the server of NRI that containerd contains (pkg/adaptation). What it
// would start is read from the configuration of a container (OCI) that NRI's generator makes of the
// agent's answer, as containerd does.

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	nri "github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	adjusted "github.com/containerd/nri/pkg/runtime-tools/generate"
	oci "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/runtime-tools/generate"
	"github.com/sirupsen/logrus"
)

type containerRuntime struct {
	*nri.Adaptation
	socket       string
	synchronized atomic.Int32
	failed       atomic.Pointer[string]
}

// Serves NRI at a socket. It has no plugins that it would start itself.
func startRuntime(socket string, log io.Writer) *containerRuntime {
	logrus.SetOutput(log)
	none := socket + ".none"
	r := &containerRuntime{socket: socket}
	update := func(context.Context, []*nri.ContainerUpdate) ([]*nri.ContainerUpdate, error) {
		return nil, fmt.Errorf("the agent updates no container")
	}
	adaptation, err := nri.New("containerd", "v2.2.0", r.synchronize, update, nri.WithSocketPath(socket),
		nri.WithPluginPath(none), nri.WithPluginConfigPath(none))
	if err != nil {
		fail("NRI: %v", err)
	}
	r.Adaptation = adaptation
	if err := r.Start(); err != nil {
		fail("NRI: %v", err)
	}
	return r
}

// Ends it, with its connections, as Linux does when a runtime's process ends: NRI leaves them open.
func (r *containerRuntime) stop() {
	r.Stop()
	for descriptor := range 1024 {
		name, _ := syscall.Getsockname(descriptor)
		if unix, is := name.(*syscall.SockaddrUnix); is && unix.Name == r.socket {
			_ = syscall.Shutdown(descriptor, syscall.SHUT_RDWR)
		}
	}
}

// Tells a plugin of the containers that there are: 6 MB of them, of which a message holds 4.
func (r *containerRuntime) synchronize(ctx context.Context, tell nri.SyncCB) error {
	var pods []*api.PodSandbox
	var containers []*api.Container
	for i := range 3000 {
		id := fmt.Sprint(i)
		pods = append(pods, &api.PodSandbox{Id: id, Name: "pod-" + id, Namespace: "shop"})
		containers = append(containers, &api.Container{Id: id, PodSandboxId: id, Name: "web",
			Env: []string{"TEXT=" + strings.Repeat("x", 2000)}})
	}
	updates, err := tell(ctx, pods, containers)
	if err == nil && len(updates) > 0 {
		err = fmt.Errorf("containers that exist are changed: %v", updates)
	}
	if err != nil {
		text := err.Error()
		r.failed.Store(&text)
		return err
	}
	r.synchronized.Add(1)
	return nil
}

// Waits until an agent has been synchronized so many times, and is called for containers.
func (r *containerRuntime) connected(what string, times int32) {
	until(what, func() bool {
		if text := r.failed.Load(); text != nil {
			fail("%s: %s", what, *text)
		}
		// The runtime synchronizes plugins at its start, too: none.
		return r.synchronized.Load() == times+1
	}, func() string { return fmt.Sprint(r.synchronized.Load()) })
	// NRI holds this lock until the plugin is in its list.
	r.BlockPluginSync().Unblock()
}

// What of a container's configuration the agent may change.
type container struct {
	env         []string
	mounts      []string
	annotations map[string]string
	cpus        string
	quota       int64
	unified     map[string]string
	io          string
}

// Creates a container of a pod with half a core's limit and CPUs 0 to 1.
func (r *containerRuntime) create(pod, name string, annotations map[string]string, env ...string) container {
	answer, err := r.CreateContainer(context.Background(), &nri.CreateContainerRequest{
		Pod: &api.PodSandbox{Id: "1", Name: pod, Uid: "u", Namespace: "shop", Annotations: annotations,
			Labels: map[string]string{"app": pod}, RuntimeHandler: "runc", Pid: 1, Ips: []string{"10.0.0.1"}},
		Container: &api.Container{Id: "2", PodSandboxId: "1", Name: name, Env: env, Args: []string{"/bin/" + name},
			Annotations: map[string]string{"io.kubernetes.container": name},
			Linux: &api.LinuxContainer{Resources: &api.LinuxResources{Cpu: &api.LinuxCPU{
				Quota: api.Int64(50_000), Period: api.UInt64(100_000), Cpus: "0-1"}}}},
	})
	if err != nil {
		fail("CreateContainer: %v", err)
	}
	quota, period := int64(50_000), uint64(100_000)
	spec := &oci.Spec{Process: &oci.Process{Env: slices.Clone(env)}, Linux: &oci.Linux{Resources: &oci.LinuxResources{
		CPU: &oci.LinuxCPU{Quota: &quota, Period: &period, Cpus: "0-1"}}}}
	generator := generate.NewFromSpec(spec)
	if err := adjusted.SpecGenerator(&generator).Adjust(answer.Adjust); err != nil {
		fail("the answer makes no configuration: %v", err)
	}
	if len(answer.Update)+len(answer.Evict) > 0 {
		fail("other containers are changed: %v", answer)
	}
	c := container{env: spec.Process.Env, annotations: spec.Annotations, cpus: spec.Linux.Resources.CPU.Cpus,
		quota: *spec.Linux.Resources.CPU.Quota, unified: spec.Linux.Resources.Unified}
	slices.Sort(c.env)
	for _, m := range spec.Mounts {
		c.mounts = append(c.mounts, fmt.Sprint(m.Type, " ", m.Source, " at ", m.Destination, " ", m.Options))
	}
	if priority := spec.Process.IOPriority; priority != nil {
		c.io = fmt.Sprint(priority.Class, " ", priority.Priority)
	}
	return c
}

// Changes the limits of a running container: CPU 0 only, as a kubelet with the CPU manager `static`
// does, and a quarter of a core. Returns what the runtime would set.
func (r *containerRuntime) update(pod, name string, annotations map[string]string, env ...string) string {
	requested := &api.LinuxResources{Cpu: &api.LinuxCPU{Quota: api.Int64(25_000), Cpus: "0"}}
	answer, err := r.UpdateContainer(context.Background(), &nri.UpdateContainerRequest{
		Pod:            &api.PodSandbox{Id: "1", Name: pod, Namespace: "shop", Annotations: annotations},
		Container:      &api.Container{Id: "2", PodSandboxId: "1", Name: name, Env: env},
		LinuxResources: requested,
	})
	if err != nil {
		fail("UpdateContainer: %v", err)
	}
	for _, u := range answer.Update {
		if u == nil {
			continue // Nothing was changed.
		}
		if u.ContainerId != "2" {
			fail("another container is changed: %v", u)
		}
		requested = u.Linux.Resources
	}
	return fmt.Sprint(requested.Cpu.Cpus, " ", requested.Cpu.Quota.GetValue())
}

var bestEffort = map[string]string{"tailwater.io/class": "best-effort", "other": "kept"}

// What containers get. Returns the variables of one with devices, which have the environment `given`.
func (r *containerRuntime) creates(socket string, given []string) []string {
	job := r.create("xz-1", "xz", bestEffort, "PATH=/bin")
	same("a container of an annotated pod has the lent cores", job.cpus, "1")
	same("its control group is idle", job.unified, map[string]string{"cpu.idle": "1"})
	same("so is its I/O", job.io, "IOPRIO_CLASS_IDLE 0")
	same("it has no variable of the agent", job.env, []string{"PATH=/bin"})
	same("and no mount: no way to the socket", job.mounts, []string(nil))
	same("it keeps the lent cores when the kubelet gives it others", r.update("xz-1", "xz", bestEffort, job.env...), "1 25000")
	same("its limit and annotations are as they were", []any{job.quota, len(job.annotations)}, []any{int64(50_000), 0})

	devices := []string{"TAILWATER_IOKERNEL=" + socket, "TAILWATER_KTHREADS=1"}
	both := r.create("xz-2", "xz", bestEffort, append(devices, "TAILWATER_CLASS=best-effort")...)
	same("one with batch devices besides keeps its limit, and has no further mount", []any{both.quota, both.mounts, both.cpus},
		[]any{int64(50_000), []string(nil), "1"})

	service := r.create("web-1", "web", nil, given...)
	name := "TAILWATER_NAME=shop/web-1/web"
	expected := append([]string{name}, given...)
	slices.Sort(expected)
	same("a container with a core has a name and no limit, and all else as before", service,
		container{env: expected, cpus: "0-1", quota: -1})
	same("it has no limit when its pod is resized, either", r.update("web-1", "web", nil, service.env...), "0 -1")
	same("others are changed as requested", r.update("db-1", "db", nil), "0 25000")
	r.leavesAlone()
	return []string{name}
}

// Containers that have nothing to do with the agent.
func (r *containerRuntime) leavesAlone() {
	long := "TEXT=" + strings.Repeat("x", 100_000)
	same("another container is left as it is, also one with 100 KB of environment",
		r.create("db-1", "db", map[string]string{"other": "kept"}, long),
		container{env: []string{long}, cpus: "0-1", quota: 50_000})
}

// A co-runner that starts while there is no IOKernel.
func (r *containerRuntime) keepsCores() {
	job := r.create("xz-3", "xz", bestEffort)
	same("without an IOKernel a co-runner keeps its cores and is idle", []any{job.cpus, job.unified},
		[]any{"0-1", map[string]string{"cpu.idle": "1"}})
}
