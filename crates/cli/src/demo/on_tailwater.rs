//! Tailwater in the demo: an IOKernel in this process with the generator as its port, service and batch as children.
//!
//! Owns their start, one measurement, and their end, in that order for every point. The IOKernel's control socket is an
//! abstract address, so nothing is left in the file system whatever happens.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use tailwater_iokernel::config::Priority;
use tailwater_iokernel::stats::StatsHandle;
use tailwater_iokernel::{Config, IoKernel, StartError};
use tailwater_loadgen::protocol::Spin;
use tailwater_loadgen::station::{Order, Progress, Station, StationHandle, station};
use tailwater_loadgen::{Measurement, Plan};

use super::child::{Batch, Service, Spec};
use super::course::{Course, counted_part};
use super::outcome::HandoffRecord;
use super::{Demo, Measured, START_TIMEOUT, stay_off_managed_cores};
use crate::machine::cpu_set;

// Outside what the IOKernel gives to those that ask for none, which begins at .2.
const SERVICE_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 200);
const GENERATOR_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 250);
const SERVICE_PORT: u16 = 5000;

/// One point.
pub fn point(
    demo: &Demo,
    speed: u64,
    plan: &Plan,
    seed: u64,
    handoffs: &mut HandoffRecord,
) -> anyhow::Result<Measured> {
    let _off = stay_off_managed_cores(&demo.course)?;
    let iokernel = Running::start(&demo.course)?;
    let mut batch = iokernel.start_batch(demo)?;
    let before = demo.solo_rate(&mut batch)?;
    let service = iokernel.start_service(demo, speed)?;
    iokernel.station.start(Order {
        plan: plan.clone(),
        protocol: Arc::new(Spin::new(plan.service.clone())),
        seed,
        server: SocketAddrV4::new(SERVICE_IP, SERVICE_PORT),
        wait: START_TIMEOUT,
    })?;
    let (from, to) = counted_part(plan, iokernel.wait_started(demo)?);
    let batch_rate = demo.batch_rate(&mut batch, from, to)?;
    let measurement = iokernel.wait_finished(demo, plan)?;
    handoffs.add(&iokernel.stats);
    drop(service);
    let after = demo.solo_rate(&mut batch)?;
    Ok(Measured { measurement, batch_rate, solo_rate: before.max(after) })
}

/// An IOKernel on a thread of this process; dropping it ends it.
struct Running {
    socket: String,
    stats: StatsHandle,
    station: StationHandle,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(course: &Course) -> anyhow::Result<Self> {
        let (port, handle) = station("generator", GENERATOR_IP).context("cannot make the generator")?;
        let stop = Arc::new(AtomicBool::new(false));
        let socket = format!("@tailwater-demo-{}", std::process::id());
        let config = Config {
            socket: socket.clone(),
            iokernel_core: Some(course.cores.polling as u16),
            managed_cores: Some(course.cores.managed.iter().map(|&core| core as u16).collect()),
            // As kthreads do. With autogroup on, a session's weight is divided among cores by the weight of its threads
            // there: were only one side raised, a compiler in another session would leave the other next to nothing.
            priority: Priority::Thread,
            ..Config::default()
        };
        let (ready, started) = channel();
        let (flag, usable) = (Arc::clone(&stop), course.cores.usable.clone());
        let thread = std::thread::Builder::new()
            .name("iokernel".to_owned())
            .spawn(move || match make(config, port, &usable) {
                Ok(iokernel) => {
                    // Nobody waits any more only if the demo is ending.
                    let _ = ready.send(Ok(iokernel.stats()));
                    if let Err(error) = iokernel.run(&flag) {
                        eprintln!("the IOKernel ended: {error}");
                    }
                }
                Err(error) => drop(ready.send(Err(error))),
            })
            .context("cannot start a thread")?;
        let stats =
            started.recv().context("the IOKernel's thread ended")?.context("the IOKernel does not start")?;
        Ok(Self { socket, stats, station: handle, stop, thread: Some(thread) })
    }

    fn start_service(&self, demo: &Demo, speed: u64) -> anyhow::Result<Service> {
        let course = &demo.course;
        let words = ["--listen", &format!("0.0.0.0:{SERVICE_PORT}"), "--speed", &speed.to_string()]
            .map(str::to_owned);
        let mut settings = self.settings("spin", "latency-critical", course.cores.managed.len());
        settings.push(("TAILWATER_GUARANTEED", course.guaranteed.to_string()));
        settings.push(("TAILWATER_IP", SERVICE_IP.to_string()));
        let spec = Spec { app: "spin", arguments: words.to_vec(), settings, ..Spec::default() };
        Service::start(&spec, &demo.interrupt)
    }

    fn start_batch(&self, demo: &Demo) -> anyhow::Result<Batch> {
        let settings = self.settings("swaptions", "best-effort", demo.course.cores.managed.len());
        let arguments = vec!["--report-on-input".to_owned()];
        Batch::start(&Spec { app: "swaptions", arguments, settings, ..Spec::default() }, &demo.interrupt)
    }

    fn settings(&self, name: &str, class: &str, kthreads: usize) -> Vec<(&'static str, String)> {
        vec![
            ("TAILWATER_IOKERNEL", self.socket.clone()),
            ("TAILWATER_NAME", name.to_owned()),
            ("TAILWATER_CLASS", class.to_owned()),
            ("TAILWATER_KTHREADS", kthreads.to_string()),
        ]
    }

    fn wait_started(&self, demo: &Demo) -> anyhow::Result<Instant> {
        loop {
            demo.interrupt.check()?;
            match self.station.wait(Duration::from_millis(10))? {
                Some(Progress::Started(at)) => return Ok(at),
                Some(Progress::Finished(_)) => anyhow::bail!("the generator ended before it began"),
                None => {}
            }
        }
    }

    /// Waits for the generator's last replies and takes its measurement.
    fn wait_finished(&self, demo: &Demo, plan: &Plan) -> anyhow::Result<Measurement> {
        let deadline = Instant::now() + Duration::from_nanos(plan.timeout_ns) + START_TIMEOUT;
        while Instant::now() < deadline {
            demo.interrupt.check()?;
            if let Some(Progress::Finished(measurement)) = self.station.wait(Duration::from_millis(10))? {
                return Ok(*measurement);
            }
        }
        anyhow::bail!("the generator did not end in time");
    }
}

fn make(config: Config, port: Station, usable: &[usize]) -> Result<IoKernel, StartError> {
    // This thread was started by one that keeps off the managed cores; the IOKernel must see them to lend them. What
    // cannot be had is reported by the IOKernel's own look at its cores.
    let _ = rustix::thread::sched_setaffinity(None, &cpu_set(usable));
    IoKernel::new(config, vec![Box::new(port)])
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there was reported by its own thread.
            let _ = thread.join();
        }
    }
}
