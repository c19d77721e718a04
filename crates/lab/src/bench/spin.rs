//! The spin service of several benchmarks, on an IOKernel of this process, whose port is the load
//! generator.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tailwater_iokernel::Config;
use tailwater_loadgen::Plan;
use tailwater_loadgen::kernel_udp::Load;
use tailwater_ports::Port;
use tailwater_testbed::bed::Testbed;
use tailwater_testbed::child::{Service, Spec};
use tailwater_testbed::embedded::Embedded;
use tailwater_testbed::interrupt::Interrupt;
use tailwater_testbed::machine::Machine;
use tailwater_testbed::port::Generator;
use tailwater_testbed::program::{Prepared, Program};
use tailwater_workload::{Figures, LoadSchedule, Rate};

/// The address of a single service, outside those that the IOKernel chooses.
const IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 200);
const PORT: u16 = 5000;

/// Returns a testbed on this machine's cores; `solo` is how long a batch job runs alone.
///
/// # Errors
/// If there are too few cores, or signals cannot be caught.
pub fn testbed(machine: &Machine, solo: Duration) -> anyhow::Result<Testbed> {
    Testbed::new(machine.usable_cores.clone(), Arc::new(Interrupt::catch()?), solo)
}

/// Starts it at `ip`, with a kthread for each shared core, and `more` settings.
pub fn start(
    testbed: &Testbed,
    program: &Program,
    (socket, name, ip): (&str, &str, Ipv4Addr),
    more: &[(&'static str, &str)],
) -> anyhow::Result<Service> {
    let Prepared { arguments, folder } = program.prepare(PORT)?;
    let (kthreads, ip) = (testbed.cores.managed.len().to_string(), ip.to_string());
    let settings = [
        ("TAILWATER_IOKERNEL", socket),
        ("TAILWATER_NAME", name),
        ("TAILWATER_KTHREADS", &kthreads),
        ("TAILWATER_IP", &ip),
    ];
    let settings = settings.iter().chain(more).map(|&(name, value)| (name, value.to_owned())).collect();
    let spec = Spec { app: program.app, arguments, settings, raise: true, ..Spec::default() };
    Ok(Service::start(&spec, &testbed.interrupt)?.with_folder(folder))
}

/// Returns the plan of requests at a constant rate, of whose time the first part is not counted.
pub fn plan(service: &str, rps: f64, warm_up: Duration, counted: Duration) -> anyhow::Result<Plan> {
    let schedule = LoadSchedule::constant(Rate::new(rps)?, (warm_up + counted).as_nanos() as u64);
    let warm_up_ns = warm_up.as_nanos() as u64;
    Ok(Plan { warm_up_ns, flows: 64, ..Plan::new(schedule, service.parse()?) })
}

/// Begins to send it requests; returns when.
pub fn begin(
    testbed: &Testbed,
    generator: &Generator,
    program: &Program,
    plan: &Plan,
    (ip, seed): (Ipv4Addr, u64),
) -> anyhow::Result<Instant> {
    let load = Load { protocol: Arc::clone(&program.protocol), seed, preload: false };
    generator.begin(testbed, plan, &load, SocketAddrV4::new(ip, PORT))
}

/// An IOKernel with the generator as its port, and one service.
pub struct Target<'a> {
    pub testbed: &'a Testbed,
    pub service: Service,
    pub socket: String,
    program: Program,
    // Declared before the generator, so dropped first: its port needs the generator until then.
    iokernel: Embedded,
    generator: Generator,
}

impl<'a> Target<'a> {
    /// Starts an IOKernel, and the service with `more` settings.
    ///
    /// # Errors
    /// If one of them does not start, or on a signal.
    pub fn start(
        testbed: &'a Testbed,
        program: Program,
        (config, ports, generator): (Config, Vec<Box<dyn Port>>, Generator),
        more: &[(&'static str, &str)],
    ) -> anyhow::Result<Self> {
        let socket = config.socket.clone();
        let iokernel = Embedded::with_ports(config, ports, Some(testbed.cores.usable.clone()))?;
        let service = start(testbed, &program, (&socket, program.app, IP), more)?;
        Ok(Self { testbed, service, socket, program, iokernel, generator })
    }

    /// Begins to send requests; returns when.
    pub fn begin(&self, plan: &Plan) -> anyhow::Result<Instant> {
        begin(self.testbed, &self.generator, &self.program, plan, (IP, 1))
    }

    /// Waits for the end of the requests.
    pub fn finish(&self, plan: &Plan) -> anyhow::Result<Figures> {
        Ok(self.generator.finish(self.testbed, plan)?.summary.figures())
    }

    /// Ends the service, then the IOKernel.
    pub fn end(self) -> anyhow::Result<()> {
        self.service.end()?;
        drop(self.iokernel);
        Ok(())
    }
}
