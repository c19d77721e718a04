//! Raw runtimes in their own processes.
//!
//! Owns the protocol between a program and copies of itself: the parent starts its own executable
//! with [`VARIABLE`] in the environment, the copy calls [`run_if_asked`] first and does not
//! continue after it. The child registers, writes a line to its standard output, and lives until
//! its standard input closes, so none outlives the parent.

use rustix::process::{Signal, getpid, kill_process, set_parent_process_death_signal};
use std::io::{Read, Write};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tailwater_testkit::Program;

use crate::attack::{self, Attack, Event};
use crate::bench::baseline_child::{self, BaselineOrder};
use crate::kthread::Behaviour;
use crate::roles::{Burn, Echo, Hog};
use crate::runtime::{RawError, RawRuntime, RawSpec};

/// Environment variable that makes a copy of the program a raw runtime.
pub const VARIABLE: &str = "TAILWATER_RAW_RUNTIME";

/// What the child's kthreads do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Role {
    /// [`Echo`].
    Echo,
    /// [`Burn`].
    Burn,
    /// [`Hog`] that stops at the preempt signal.
    HeedSignal,
    /// [`Hog`] that never stops.
    NeverYield,
}

impl Role {
    /// Returns a behaviour of this role.
    pub fn behaviour(self) -> Box<dyn Behaviour> {
        match self {
            Self::Echo => Box::<Echo>::default(),
            Self::Burn => Box::<Burn>::default(),
            Self::HeedSignal => Box::new(Hog { heeds_signal: true, ..Hog::default() }),
            Self::NeverYield => Box::<Hog>::default(),
        }
    }
}

/// The order of a child.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
enum Order {
    Runtime {
        socket: String,
        spec: RawSpec,
        role: Role,
    },
    /// A runtime that stops itself once it is registered.
    Stopped {
        socket: String,
        spec: RawSpec,
        parent: u32,
    },
    Attack {
        socket: String,
        attack: Attack,
        user: u32,
    },
    Baseline(BaselineOrder),
}

/// Returns the environment of a child that takes part in the baseline of the hand-off benchmark.
pub(crate) fn baseline_order(order: BaselineOrder) -> String {
    serde_json::to_string(&Order::Baseline(order)).expect("an order is plain data")
}

/// Makes the child that `command` starts a raw runtime, until its standard input ends.
///
/// # Panics
/// Never: an order is plain data.
pub fn order<'a>(command: &'a mut Command, socket: &str, spec: &RawSpec, role: Role) -> &'a mut Command {
    let order = Order::Runtime { socket: socket.to_owned(), spec: spec.clone(), role };
    command.env(VARIABLE, serde_json::to_string(&order).expect("an order is plain data"))
}

/// A raw runtime in a child process; killed when dropped.
#[derive(Debug)]
pub struct RawChild {
    program: Program,
    /// Of an attacker.
    turns: Arc<Mutex<Turns>>,
}

/// When an attacker was registered.
#[derive(Debug, Default)]
struct Turns {
    /// Since then, if it is.
    since: Option<Instant>,
    before: Duration,
    expulsions: u32,
}

impl Turns {
    fn enter(&mut self, line: &str) {
        if line.contains(READY) {
            self.since.get_or_insert_with(Instant::now);
        } else if line.contains(EXPELLED) {
            self.before += self.since.take().map_or(Duration::ZERO, |since| since.elapsed());
            self.expulsions += 1;
        }
    }
}

impl RawChild {
    /// Starts `command` (a copy of a program that calls [`run_if_asked`]) as a raw runtime and
    /// waits until it is registered.
    ///
    /// # Errors
    /// What went wrong, in the child's message if it wrote one.
    pub fn start(mut command: Command, socket: &str, spec: &RawSpec, role: Role) -> Result<Self, String> {
        order(&mut command, socket, spec, role);
        Self::spawn(command)
    }

    /// As [`start`](Self::start), as a runtime that is stopped (SIGSTOP) as soon as it is
    /// registered, and ends with the thread that calls this.
    ///
    /// # Errors
    /// As `start`.
    pub(crate) fn start_stopped(mut command: Command, socket: &str, spec: &RawSpec) -> Result<Self, String> {
        let parent = std::process::id();
        let order = Order::Stopped { socket: socket.to_owned(), spec: spec.clone(), parent };
        command.env(VARIABLE, serde_json::to_string(&order).expect("an order is plain data"));
        Self::spawn(command)
    }

    /// As [`start`](Self::start), as an attacker of this user if this process is root's, and waits
    /// until it is under way.
    ///
    /// # Errors
    /// As `start`.
    ///
    /// # Panics
    /// Never: an order is plain data.
    pub fn attack(mut command: Command, socket: &str, attack: Attack, user: u32) -> Result<Self, String> {
        let order = Order::Attack { socket: socket.to_owned(), attack, user };
        command.env(VARIABLE, serde_json::to_string(&order).expect("an order is plain data"));
        let child = Self::spawn(command)?;
        let turns = Arc::clone(&child.turns);
        child.program.each_line(move |line| lock(&turns).enter(line));
        Ok(child)
    }

    fn spawn(mut command: Command) -> Result<Self, String> {
        let program = Program::try_spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let mut program = program.map_err(|e| format!("cannot start {command:?}: {e}"))?;
        // Test programs print lines of their own first.
        while let Some(line) = program.line() {
            if line.contains(READY) {
                let turns = Turns { since: Some(Instant::now()), ..Turns::default() };
                return Ok(Self { program, turns: Arc::new(Mutex::new(turns)) });
            }
            if let Some((_, why)) = line.split_once(FAILED) {
                return Err(why.to_owned());
            }
        }
        Err("the child ended before it was registered".to_owned())
    }

    /// Returns for how long an attacker has attacked so far: been registered, or not needed to be.
    pub fn attacked_for(&self) -> Duration {
        let turns = lock(&self.turns);
        turns.before + turns.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Returns how often an attacker was expelled.
    pub fn expulsions(&self) -> u32 {
        lock(&self.turns).expulsions
    }

    /// Kills it (SIGKILL) and waits for its end.
    pub fn kill(&mut self) {
        self.program.kill();
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.program.pid()
    }
}

const READY: &str = "tailwater-raw-runtime: ready";
const EXPELLED: &str = "tailwater-raw-runtime: expelled";
const FAILED: &str = "tailwater-raw-runtime: failed: ";

/// Becomes a raw runtime if [`VARIABLE`] is set, and returns its exit code; `None` otherwise. Call
/// it before anything else in `main`.
pub fn run_if_asked() -> Option<ExitCode> {
    let order = std::env::var(VARIABLE).ok()?;
    Some(match live(&order) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            say(&format!("{FAILED}{why}"));
            ExitCode::FAILURE
        }
    })
}

fn live(order: &str) -> Result<(), String> {
    let (socket, spec, role) = match serde_json::from_str(order).map_err(|e| e.to_string())? {
        Order::Runtime { socket, spec, role } => (socket, spec, role),
        Order::Attack { socket, attack, user } => {
            return assail(&socket, attack, user).map_err(|e| e.to_string());
        }
        Order::Stopped { socket, spec, parent } => return stop(&socket, &spec, parent),
        Order::Baseline(order) => return baseline_child::live(&order).map_err(|e| e.to_string()),
    };
    let runtime = RawRuntime::start(&socket, &spec, |_| role.behaviour()).map_err(|e| e.to_string())?;
    // Initial work, as the main thread of a program is.
    (0..spec.register.kthreads).for_each(|k| runtime.submit(k));
    say(READY);
    // Until the parent closes it or dies.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    drop(runtime);
    Ok(())
}

/// Registers and stops this process, which `parent` has started.
fn stop(socket: &str, spec: &RawSpec, parent: u32) -> Result<(), String> {
    // A process that is stopped does not notice that its input ends.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|e| e.to_string())?;
    if std::os::unix::process::parent_id() != parent {
        return Err("the process that started this one is gone".to_owned());
    }
    let _runtime = RawRuntime::start(socket, spec, |_| Role::Echo.behaviour()).map_err(|e| e.to_string())?;
    say(READY);
    kill_process(getpid(), Signal::STOP).map_err(|e| e.to_string())?;
    // Another thread takes the signal, and this one may run on until then.
    loop {
        std::thread::park();
    }
}

/// Returns a command that starts a copy of this process, which is such a copy itself.
///
/// # Errors
/// If it is none.
pub(crate) fn copy_of_this() -> Result<Command, RawError> {
    if std::env::var_os(VARIABLE).is_none() {
        let what = "this attack takes a process of its own: start it with `RawChild::attack`";
        return Err(RawError::Unexpected(what.to_owned()));
    }
    // Not by path: a newer build may have replaced the file, or folders above it may be closed to
    // the user.
    let mut command = Command::new("/proc/self/exe");
    command.args(std::env::args_os().skip(1));
    Ok(command)
}

/// Attacks until standard input ends, as a user without rights where this process may become one.
fn assail(socket: &str, attack: Attack, user: u32) -> Result<(), RawError> {
    attack::become_user(user);
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        // Nothing is to be saved.
        std::process::exit(0);
    });
    attack.run(socket, &AtomicBool::new(false), |event| {
        say(match event {
            Event::UnderWay => READY,
            Event::Expelled(_) => EXPELLED,
        });
    })
}

fn lock(turns: &Mutex<Turns>) -> MutexGuard<'_, Turns> {
    turns.lock().unwrap_or_else(PoisonError::into_inner)
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // Fails if the parent no longer reads, and then needs no answer.
    let _ = writeln!(out, "\n{line}");
    let _ = out.flush();
}
