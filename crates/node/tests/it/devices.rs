//! Resources that pods request, and what is promised when a part of the node ends.

use tailwater_testkit::until;

use crate::iokernel::{IoKernel, program};
use crate::kubelet::Kubelet;
use crate::{agent, folder};

const CORE: &str = "tailwater.io/core";
const BATCH: &str = "tailwater.io/batch-core";

/// Waits until a resource has so many healthy devices, and in all.
fn until_offered(kubelet: &Kubelet, resource: &str, devices: (usize, usize)) {
    until(&format!("{resource} has {devices:?}"), || kubelet.devices(resource) == Some(devices));
}

#[test]
fn pods_are_offered_cores_that_are_guaranteed_to_no_other_program_and_what_services_leave_over() {
    let folder = folder();
    let outside = program("dns", "latency-critical", 1, 1);
    let iokernel = IoKernel::start(folder.path(), &[1, 2, 3], std::slice::from_ref(&outside));
    let kubelet = Kubelet::start(folder.path());
    let _agent = agent(folder.path());
    until_offered(&kubelet, CORE, (2, 2));
    until_offered(&kubelet, BATCH, (2, 2));
    let given = kubelet.allocate(CORE, 2);
    let socket = folder.path().join("run/socket").display().to_string();
    assert_eq!(given.variables["TAILWATER_IOKERNEL"], socket);
    assert_eq!(given.variables["TAILWATER_GUARANTEED"], "2");
    assert_eq!(given.variables["TAILWATER_KTHREADS"], "2");
    let run = folder.path().join("run").display().to_string();
    let [mount] = &given.mounts[..] else { panic!("{given:?}") };
    assert_eq!((&mount.host_path, &mount.container_path, mount.read_only), (&run, &run, true));
    assert_eq!(kubelet.allocate(BATCH, 1).variables["TAILWATER_CLASS"], "best-effort");
    // The pod has registered and computes: the kubelet counts its guarantee itself.
    iokernel.set(&[1, 2, 3], &[outside, program("shop/web-1/web", "latency-critical", 2, 2)]);
    until_offered(&kubelet, BATCH, (0, 0));
    until_offered(&kubelet, CORE, (2, 2));
}

#[test]
fn cores_are_unhealthy_while_no_iokernel_answers() {
    let folder = folder();
    let kubelet = Kubelet::start(folder.path());
    let agent = agent(folder.path());
    until_offered(&kubelet, CORE, (0, 0));
    let iokernel = IoKernel::start(folder.path(), &[1, 2], &[]);
    until_offered(&kubelet, CORE, (2, 2));
    drop(iokernel);
    until_offered(&kubelet, CORE, (0, 2));
    until_offered(&kubelet, BATCH, (0, 2));
    let _iokernel = IoKernel::start(folder.path(), &[1, 2], &[]);
    until_offered(&kubelet, CORE, (2, 2));
    let said = agent.errors();
    assert!(said.contains("cores are unhealthy") && said.contains("answers again"), "{said}");
}

#[test]
fn a_kubelet_that_starts_again_gets_the_resources_again() {
    let folder = folder();
    let _iokernel = IoKernel::start(folder.path(), &[1], &[]);
    let agent = agent(folder.path());
    until("the agent says that it waits", || agent.errors().contains("no kubelet listens"));
    let mut kubelet = Kubelet::start(folder.path());
    until_offered(&kubelet, CORE, (1, 1));
    // One removes all sockets in its folder, another its own only.
    for start in [Kubelet::start, Kubelet::start_beside] {
        drop(kubelet);
        kubelet = start(folder.path());
        until_offered(&kubelet, CORE, (1, 1));
        until_offered(&kubelet, BATCH, (1, 1));
        assert_eq!(kubelet.registrations(CORE), 1, "once to each kubelet");
    }
}

#[test]
fn an_agent_that_is_killed_offers_nothing_until_the_next_one_registers() {
    let folder = folder();
    let _iokernel = IoKernel::start(folder.path(), &[1], &[]);
    let kubelet = Kubelet::start(folder.path());
    let mut first = agent(folder.path());
    until_offered(&kubelet, CORE, (1, 1));
    first.kill();
    until("the kubelet sees its end", || kubelet.devices(CORE).is_none() && kubelet.devices(BATCH).is_none());
    // It finds the sockets of the first one.
    let mut second = agent(folder.path());
    until_offered(&kubelet, CORE, (1, 1));
    until_offered(&kubelet, BATCH, (1, 1));
    assert_eq!(kubelet.registrations(CORE), 2);
    second.signal(rustix::process::Signal::TERM);
    assert!(second.wait().success());
    assert!(!folder.path().join("plugins/tailwater-core.sock").exists(), "it removes its own");
}
