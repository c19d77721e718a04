package main

// A kubelet, by the service and client that k8s.io/kubelet generates: what its device manager asks
// of a plugin, and in which order.

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

type kubelet struct {
	api.UnimplementedRegistrationServer
	folder  string
	server  *grpc.Server
	ended   context.Context
	end     context.CancelFunc
	lock    sync.Mutex
	plugins map[string]*plugin
}

type plugin struct {
	requests []*api.RegisterRequest
	options  *api.DevicePluginOptions
	client   api.DevicePluginClient
	devices  []*api.Device // nil: the plugin does not serve
}

// Removes the sockets of the folder, as a kubelet that starts does, and serves.
func startKubelet(folder string) *kubelet {
	found, _ := filepath.Glob(filepath.Join(folder, "*"))
	for _, file := range found {
		_ = os.Remove(file)
	}
	k := &kubelet{folder: folder, server: grpc.NewServer(), plugins: map[string]*plugin{}}
	k.ended, k.end = context.WithCancel(context.Background())
	listener, err := net.Listen("unix", filepath.Join(folder, filepath.Base(api.KubeletSocket)))
	if err != nil {
		fail("%v", err)
	}
	api.RegisterRegistrationServer(k.server, k)
	go k.server.Serve(listener)
	return k
}

func (k *kubelet) stop() {
	k.end()
	k.server.Stop()
}

// Answers a plugin once it has answered a call itself, as the device manager of a kubelet does.
func (k *kubelet) Register(within context.Context, request *api.RegisterRequest) (*api.Empty, error) {
	if !slices.Contains(api.SupportedVersions[:], request.Version) {
		return nil, status.Errorf(codes.Unimplemented, "version %q", request.Version)
	}
	connection, err := grpc.NewClient("unix:"+filepath.Join(k.folder, request.Endpoint),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	if err != nil {
		return nil, err
	}
	client := api.NewDevicePluginClient(connection)
	options, err := client.GetDevicePluginOptions(within, &api.Empty{})
	if err != nil {
		connection.Close()
		return nil, err
	}
	k.lock.Lock()
	defer k.lock.Unlock()
	p := k.plugins[request.ResourceName]
	if p == nil {
		p = &plugin{}
		k.plugins[request.ResourceName] = p
	}
	p.requests = append(p.requests, request)
	p.client, p.options = client, options
	go func() {
		defer connection.Close()
		k.watch(p, client)
	}()
	return &api.Empty{}, nil
}

// Follows a plugin's devices to the end of its stream.
func (k *kubelet) watch(p *plugin, client api.DevicePluginClient) {
	set := func(devices []*api.Device) {
		k.lock.Lock()
		defer k.lock.Unlock()
		p.devices = devices
	}
	stream, err := client.ListAndWatch(k.ended, &api.Empty{})
	for err == nil {
		var list *api.ListAndWatchResponse
		if list, err = stream.Recv(); err == nil {
			set(append([]*api.Device{}, list.Devices...))
		}
	}
	set(nil)
}

// Returns the healthy devices and all of them; -1 while there is no plugin.
func (k *kubelet) devices(resource string) (healthy, all int) {
	k.lock.Lock()
	defer k.lock.Unlock()
	p := k.plugins[resource]
	if p == nil || p.devices == nil {
		return -1, -1
	}
	for _, device := range p.devices {
		if device.Health == api.Healthy {
			healthy++
		} else if device.Health != api.Unhealthy {
			return -2, -2
		}
	}
	return healthy, len(p.devices)
}

func (k *kubelet) offers(resource string, healthy, all int) {
	k.reaches(fmt.Sprintf("the kubelet knows %d of %s, %d healthy", all, resource, healthy), resource, healthy, all)
}

func (k *kubelet) gone(resource string) {
	k.reaches("the kubelet sees that the plugin of "+resource+" has ended", resource, -1, -1)
}

func (k *kubelet) reaches(what, resource string, healthy, all int) {
	until(what, func() bool {
		isHealthy, are := k.devices(resource)
		return isHealthy == healthy && are == all
	}, func() string { return fmt.Sprint(k.devices(resource)) })
}

func (k *kubelet) registrations() map[string]int {
	k.lock.Lock()
	defer k.lock.Unlock()
	counts := map[string]int{}
	for resource, p := range k.plugins {
		counts[resource] = len(p.requests)
	}
	return counts
}

// What plugins say of themselves.
func (k *kubelet) registered() {
	k.lock.Lock()
	defer k.lock.Unlock()
	same("two resources are registered", slices.Sorted(maps.Keys(k.plugins)), []string{batch, core})
	for resource, endpoint := range map[string]string{core: "tailwater-core.sock", batch: "tailwater-batch-core.sock"} {
		p := k.plugins[resource]
		same(resource+" has a socket in the folder", p.requests[0].Endpoint, endpoint)
		// With them the kubelet makes calls that the plugin does not have.
		wants := func(o *api.DevicePluginOptions) bool { return o.PreStartRequired || o.GetPreferredAllocationAvailable }
		same(resource+" has no options, at its registration and when it is asked",
			[]bool{wants(p.requests[0].Options), wants(p.options)}, []bool{false, false})
	}
}

// What a container gets with its devices.
type given struct {
	env         []string
	annotations map[string]string
}

// Allocates devices; returns what a container with a core gets, and one with a batch core.
func (k *kubelet) allocates(socket string) (service, job given) {
	folder := filepath.Dir(socket)
	mount := []string{fmt.Sprint(folder, " at ", folder, ", read-only: true")}
	service, mounts := k.allocate(core, 1)
	same("a core comes with its variables and its annotation", service, given{[]string{"TAILWATER_GUARANTEED=1",
		"TAILWATER_IOKERNEL=" + socket, "TAILWATER_KTHREADS=1"}, map[string]string{core: "1"}})
	same("and the folder of the socket", mounts, mount)
	job, mounts = k.allocate(batch, 1)
	same("a batch core comes with its variables and its annotation", job, given{[]string{"TAILWATER_CLASS=best-effort",
		"TAILWATER_IOKERNEL=" + socket, "TAILWATER_KTHREADS=1"}, map[string]string{batch: "1"}})
	same("and the same folder", mounts, mount)
	return service, job
}

func (k *kubelet) allocate(resource string, count int) (gets given, mounts []string) {
	k.lock.Lock()
	p := k.plugins[resource]
	client, devices := p.client, p.devices
	k.lock.Unlock()
	var ids []string
	for _, device := range devices[:count] {
		ids = append(ids, device.ID)
	}
	within, cancel := context.WithTimeout(k.ended, time.Minute)
	defer cancel()
	answer, err := client.Allocate(within, &api.AllocateRequest{
		ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: ids}}})
	if err != nil || len(answer.ContainerResponses) != 1 {
		fail("Allocate of %s: %v, %v", resource, answer, err)
	}
	answered := answer.ContainerResponses[0]
	for _, m := range answered.Mounts {
		mounts = append(mounts, fmt.Sprint(m.HostPath, " at ", m.ContainerPath, ", read-only: ", m.ReadOnly))
	}
	if len(answered.Devices)+len(answered.CdiDevices) != 0 {
		fail("Allocate of %s gives more: %v", resource, answered)
	}
	for name, value := range answered.Envs {
		gets.env = append(gets.env, name+"="+value)
	}
	slices.Sort(gets.env)
	gets.annotations = answered.Annotations
	return gets, mounts
}
