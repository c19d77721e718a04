//! Resources that pods request, and what is promised when a part of the node ends.

use std::os::fd::AsRawFd;
use std::path::Path;

use tailwater_testkit::until;

use crate::iokernel::{IoKernel, program};
use crate::kubelet::Kubelet;
use crate::{agent, agent_of, folder};

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
    assert_eq!(given.annotations[CORE], "2", "by which the NRI plugin knows the container");
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
        // The second time if it looked between the bind of the plugin's socket and the kubelet's.
        let registrations = kubelet.registrations(CORE);
        assert!(registrations >= 1, "{registrations}");
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

#[test]
fn an_agent_ends_whose_mount_is_of_a_folder_that_has_been_deleted() {
    let folder = folder();
    let run = folder.path().join("run");
    // As a bind mount does, a descriptor holds the folder.
    let held = std::fs::File::open(&run).expect("the folder");
    let mount = format!("/proc/{}/fd/{}", std::process::id(), held.as_raw_fd());
    let mut agent = agent_of(folder.path(), Path::new(&format!("{mount}/socket")));
    until("the agent runs", || agent.errors().contains("cores are unhealthy"));
    std::fs::remove_dir(&run).expect("it is empty");
    assert!(!agent.wait().success());
    let said = agent.errors();
    assert!(said.contains(&mount) && said.contains("deleted") && said.contains("start again"), "{said}");
}

#[test]
fn an_agent_that_ends_leaves_the_socket_of_the_next_one() {
    let folder = folder();
    let _iokernel = IoKernel::start(folder.path(), &[1], &[]);
    let kubelet = Kubelet::start(folder.path());
    let mut agent = agent(folder.path());
    until_offered(&kubelet, CORE, (1, 1));
    let socket = folder.path().join("plugins/tailwater-core.sock");
    // It is stopped before it sees the other one, and told to end before it goes on.
    agent.signal(rustix::process::Signal::STOP);
    std::fs::remove_file(&socket).expect("its socket");
    let _next = std::os::unix::net::UnixListener::bind(&socket).expect("it listens");
    agent.signal(rustix::process::Signal::TERM);
    agent.signal(rustix::process::Signal::CONT);
    assert!(agent.wait().success());
    assert!(socket.exists());
}
