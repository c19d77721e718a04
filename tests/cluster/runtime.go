package main

// A container runtime, by the server of NRI that containerd contains (pkg/adaptation). What it
// would start is read from the configuration of a container (OCI) that NRI's generator makes of the
// agent's answer, as containerd does.

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
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

// The number of containers that exist.
const existing = 3000

type containerRuntime struct {
	*nri.Adaptation
	socket       string
	synchronized atomic.Int32
	late         atomic.Pointer[string] // What the agent has given a container of its own accord.
	failed       atomic.Pointer[string]
}

// Serves NRI at a socket. It has no plugins that it would start itself.
func startRuntime(socket string, log io.Writer) *containerRuntime {
	logrus.SetOutput(log)
	none := socket + ".none"
	r := &containerRuntime{socket: socket}
	update := func(_ context.Context, updates []*nri.ContainerUpdate) ([]*nri.ContainerUpdate, error) {
		var given string
		for _, u := range updates {
			given += fmt.Sprint(u.ContainerId, " has cores ", u.Linux.Resources.Cpu.Cpus)
		}
		r.late.Store(&given)
		return nil, nil
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

// Tells a plugin of the containers that there are: 6 MB of them, of which a message holds 4. The first
// has a core and started while no agent ran; the last has a pod with the annotation, and is just being
// started.
func (r *containerRuntime) synchronize(ctx context.Context, tell nri.SyncCB) error {
	var pods []*api.PodSandbox
	var containers []*api.Container
	for i := range existing {
		id := fmt.Sprint(i)
		pods = append(pods, &api.PodSandbox{Id: id, Name: "pod-" + id, Namespace: "shop"})
		containers = append(containers, &api.Container{Id: id, PodSandboxId: id, Name: "web",
			Env: []string{"TEXT=" + strings.Repeat("x", 2000)}})
	}
	last := existing - 1
	containers[last].State = api.ContainerState_CONTAINER_CREATED
	containers[0].Annotations = map[string]string{core: "1"}
	pods[last].Annotations = bestEffort
	updates, err := tell(ctx, pods, containers)
	limits := map[string]string{}
	for _, u := range updates {
		cpu := u.Linux.Resources.Cpu
		limits[u.ContainerId] = fmt.Sprint("cores ", cpu.Cpus, ", quota ", cpu.Quota.GetValue())
	}
	late := map[string]string{"0": "cores , quota -1", fmt.Sprint(last): "cores 1, quota 0"}
	if r.synchronized.Load() == 0 {
		late = nil // At its start it has no plugin.
	}
	if err == nil && !maps.Equal(limits, late) {
		err = fmt.Errorf("containers that exist get %v, not %v", limits, late)
	}
	if err != nil {
		text := err.Error()
		r.failed.Store(&text)
		return err
	}
	r.synchronized.Add(1)
	return nil
}

// The last one has started: containerd gives it no limits that came while it was being started.
func (r *containerRuntime) starts() {
	last := fmt.Sprint(existing - 1)
	err := r.PostStartContainer(context.Background(), &nri.PostStartContainerRequest{
		Pod:       &api.PodSandbox{Id: last, Name: "pod-" + last, Namespace: "shop", Annotations: bestEffort},
		Container: &api.Container{Id: last, PodSandboxId: last, Name: "web", State: api.ContainerState_CONTAINER_RUNNING},
	})
	if err != nil {
		fail("PostStartContainer: %v", err)
	}
	given := func() string {
		if text := r.late.Load(); text != nil {
			return *text
		}
		return "nothing"
	}
	until("a container that was being started meanwhile gets the lent cores when it has started",
		func() bool { return given() == last+" has cores 1" }, given)
}

// Waits until an agent has been synchronized so many times, and is called for containers.
func (r *containerRuntime) connected(what string, times int32) {
	until(what, func() bool {
		if text := r.failed.Load(); text != nil {
			fail("%s: %s", what, *text)
		}
		// One more, at its start.
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
	shares      uint64
	unified     map[string]string
	io          string
}

// Creates a container of a pod with half a core's limit and CPUs 0 to 1.
func (r *containerRuntime) create(pod, name string, annotations map[string]string, with given) container {
	own := map[string]string{"io.kubernetes.container": name}
	maps.Copy(own, with.annotations)
	answer, err := r.CreateContainer(context.Background(), &nri.CreateContainerRequest{
		Pod: &api.PodSandbox{Id: "1", Name: pod, Uid: "u", Namespace: "shop", Annotations: annotations,
			Labels: map[string]string{"app": pod}, RuntimeHandler: "runc", Pid: 1, Ips: []string{"10.0.0.1"}},
		Container: &api.Container{Id: "2", PodSandboxId: "1", Name: name, Env: with.env, Args: []string{"/bin/" + name},
			Annotations: own,
			Linux: &api.LinuxContainer{Resources: &api.LinuxResources{Cpu: &api.LinuxCPU{
				Shares: api.UInt64(512), Quota: api.Int64(50_000), Period: api.UInt64(100_000), Cpus: "0-1"}}}},
	})
	if err != nil {
		fail("CreateContainer: %v", err)
	}
	quota, period, shares := int64(50_000), uint64(100_000), uint64(512)
	spec := &oci.Spec{Process: &oci.Process{Env: slices.Clone(with.env)}, Linux: &oci.Linux{Resources: &oci.LinuxResources{
		CPU: &oci.LinuxCPU{Shares: &shares, Quota: &quota, Period: &period, Cpus: "0-1"}}}}
	generator := generate.NewFromSpec(spec)
	if err := adjusted.SpecGenerator(&generator).Adjust(answer.Adjust); err != nil {
		fail("the answer makes no configuration: %v", err)
	}
	if len(answer.Update)+len(answer.Evict) > 0 {
		fail("other containers are changed: %v", answer)
	}
	c := container{env: spec.Process.Env, annotations: spec.Annotations, cpus: spec.Linux.Resources.CPU.Cpus,
		quota: *spec.Linux.Resources.CPU.Quota, shares: *spec.Linux.Resources.CPU.Shares, unified: spec.Linux.Resources.Unified}
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
func (r *containerRuntime) update(pod, name string, annotations map[string]string, with given) string {
	requested := &api.LinuxResources{Cpu: &api.LinuxCPU{Quota: api.Int64(25_000), Cpus: "0"}}
	answer, err := r.UpdateContainer(context.Background(), &nri.UpdateContainerRequest{
		Pod:            &api.PodSandbox{Id: "1", Name: pod, Namespace: "shop", Annotations: annotations},
		Container:      &api.Container{Id: "2", PodSandboxId: "1", Name: name, Env: with.env, Annotations: with.annotations},
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

// With control groups of version 1 there is no cpu.idle, and a container runtime refuses it.
func idle() map[string]string {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil {
		return nil
	}
	return map[string]string{"cpu.idle": "1"}
}

// The weight of a batch pod's container: its own where its group is not idle.
func weight() uint64 {
	if idle() == nil {
		return 512
	}
	return 0
}

// What containers get: ordinary ones, one with a core, one with a batch core. Returns the further
// variables of the second.
func (r *containerRuntime) creates(core, batch given) []string {
	plain := given{env: []string{"PATH=/bin"}}
	job := r.create("xz-1", "xz", bestEffort, plain)
	same("a container of an annotated pod has the lent cores", job.cpus, "1")
	same("its control group is idle, with version 2", job.unified, idle())
	same("and it has no weight among its limits, which Linux refuses for such a group", job.shares, weight())
	same("so is its I/O", job.io, "IOPRIO_CLASS_IDLE 0")
	same("it has no variable of the agent", job.env, []string{"PATH=/bin"})
	same("and no mount: no way to the socket", job.mounts, []string(nil))
	same("it keeps the lent cores when the kubelet gives it others", r.update("xz-1", "xz", bestEffort, plain), "1 25000")
	same("its limit and annotations are as they were", []any{job.quota, len(job.annotations)}, []any{int64(50_000), 0})

	with := r.create("xz-2", "xz", nil, batch)
	same("so has one with a batch core, which keeps its limit, and gets no further mount", []any{with.quota, with.mounts, with.cpus},
		[]any{int64(50_000), []string(nil), "1"})

	service := r.create("web-1", "web", nil, core)
	name := "TAILWATER_NAME=shop/web-1/web"
	expected := append([]string{name}, core.env...)
	slices.Sort(expected)
	same("a container with a core has a name and no limit, and all else as before", service,
		container{env: expected, cpus: "0-1", quota: -1, shares: 512})
	same("it has no limit when its pod is resized, either", r.update("web-1", "web", nil, core), "0 -1")
	same("others are changed as requested", r.update("db-1", "db", nil, plain), "0 25000")
	same("one that has the variables only keeps its limit", r.create("db-1", "db", nil, given{env: core.env}),
		container{env: core.env, cpus: "0-1", quota: 50_000, shares: 512})
	r.leavesAlone()
	return []string{name}
}

// Containers that have nothing to do with the agent.
func (r *containerRuntime) leavesAlone() {
	long := "TEXT=" + strings.Repeat("x", 100_000)
	same("another container is left as it is, also one with 100 KB of environment",
		r.create("db-1", "db", map[string]string{"other": "kept"}, given{env: []string{long}}),
		container{env: []string{long}, cpus: "0-1", quota: 50_000, shares: 512})
}

// A batch pod that starts while there is no IOKernel.
func (r *containerRuntime) keepsCores() {
	job := r.create("xz-3", "xz", bestEffort, given{})
	same("without an IOKernel a batch pod keeps its cores and is idle", []any{job.cpus, job.unified},
		[]any{"0-1", idle()})
}
