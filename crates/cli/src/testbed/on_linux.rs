//! Linux in the demo: the same service and batch job as ordinary threads, the generator over kernel UDP.
//!
//! Owns the baseline's conditions, chosen in its favour: service and batch job pinned to the managed cores, the batch job in the
//! `SCHED_IDLE` class, both in one scheduling group (with autogroup on, `SCHED_IDLE` ranks only within a session), and the
//! generator alone on its core. Service and generator have the priority that kthreads and IOKernel give themselves.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde::Serialize;
use tailwater_loadgen::kernel_udp::{Target, contact_server, run as generate};
use tailwater_loadgen::{Measurement, Plan};

use super::child::{Batch, Service, Spec};
use super::course::counted_part;
use super::{Demo, Measured, START_TIMEOUT, stay_off_managed_cores};
use tailwater_shm::priority::HIGHEST;

/// How the server waits for requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wait {
    /// Blocked in the kernel.
    Block,
    /// Asking again and again.
    Busy,
}

/// One point.
pub fn point(demo: &Demo, speed: u64, plan: &Plan, seed: u64, wait: Wait) -> anyhow::Result<Measured> {
    let _off = stay_off_managed_cores(&demo.course)?;
    // In this order: beside a server that polls, the batch job would take seconds to start.
    let mut batch = start_batch(demo)?;
    let before = demo.solo_rate(&mut batch)?;
    let service = start_service(demo, speed, wait)?;
    let stop = AtomicBool::new(false);
    contact_server(service.address, START_TIMEOUT, &stop)?;
    // One socket: on one machine nothing hashes flows to queues, and several would need epoll.
    let plan = Plan { flows: 1, ..plan.clone() };
    let core = demo.course.cores.polling;
    let (measurement, batch_rate) = std::thread::scope(|scope| {
        let generator = scope.spawn(|| generate_on(core, &plan, seed, service.address, &stop));
        let (from, to) = counted_part(&plan, Instant::now());
        let rate = demo.batch_rate(&mut batch, from, to);
        if rate.is_err() {
            stop.store(true, Ordering::Relaxed);
        }
        let measurement = generator.join().expect("the generator does not panic");
        anyhow::Ok((measurement?, rate?))
    })?;
    drop(service);
    let after = demo.solo_rate(&mut batch)?;
    Ok(Measured { measurement, batch_rate, solo_rate: before.max(after) })
}

fn generate_on(
    core: usize,
    plan: &Plan,
    seed: u64,
    server: SocketAddr,
    stop: &AtomicBool,
) -> anyhow::Result<Measurement> {
    // As the IOKernel and its kthreads do, and the service below; refused without the privilege, and then for all of them.
    // Ends with this thread.
    let _ = rustix::process::setpriority_process(None, HIGHEST);
    let target = Target { server, core: Some(core), wait: START_TIMEOUT };
    Ok(generate(plan, seed, &target, stop)?)
}

fn start_service(demo: &Demo, speed: u64, wait: Wait) -> anyhow::Result<Service> {
    let managed = &demo.course.cores.managed;
    let wait = match wait {
        Wait::Block => "block",
        Wait::Busy => "busy",
    };
    let (threads, speed) = (managed.len().to_string(), speed.to_string());
    let words =
        ["--linux", "--listen", "127.0.0.1:0", "--wait", wait, "--threads", &threads, "--speed", &speed];
    let arguments = words.map(str::to_owned).to_vec();
    let spec = Spec { app: "spin", arguments, cores: managed.clone(), raise: true, ..Spec::default() };
    Service::start(&spec, &demo.interrupt)
}

fn start_batch(demo: &Demo) -> anyhow::Result<Batch> {
    let managed: Vec<String> = demo.course.cores.managed.iter().map(usize::to_string).collect();
    let (threads, cores) = (managed.len().to_string(), managed.join(","));
    // Only the workers: what reports their progress stays off the cores under measurement, as on Tailwater.
    let words = ["--linux", "--threads", &threads, "--core", &cores, "--report-on-input", "--nice-idle"];
    let arguments = words.map(str::to_owned).to_vec();
    Batch::start(&Spec { app: "swaptions", arguments, ..Spec::default() }, &demo.interrupt)
}
