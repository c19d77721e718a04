//! What the attackers of the tests are made of: an IOKernel as a process of its own, which a failed
//! test can still kill, and registrations made by hand.

use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::process::geteuid;
use rustix::thread::{
    CapabilitySet, Gid, Uid, capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};
use std::process::Command;
use std::sync::MutexGuard;
use std::sync::mpsc::{Sender, channel};
use tailwater_iokernel_testing::RawSpec;
use tailwater_shm::control::{self, ClientMessage, ControlError, Register, ServerMessage, Welcome};
use tailwater_shm::memory::Mapping;
use tailwater_testkit::{PATIENCE, Program, binary, cpu_numbers, socket_name};

/// The IOKernel that is attacked; killed when dropped.
#[derive(Debug)]
pub struct Target {
    /// Its control socket.
    pub socket: String,
    /// Its process.
    pub program: Program,
    /// One IOKernel at a time uses the managed core.
    _turn: MutexGuard<'static, ()>,
}

impl Target {
    /// Starts an IOKernel with one core to lend.
    ///
    /// # Panics
    /// If it does not get ready.
    pub fn start() -> Self {
        Self::start_as(&mut Command::new(binary("tailwater-tests", "iokernel")), &[])
    }

    /// As [`start`](Self::start), on a shared machine, as process 1 of a PID namespace with its own
    /// `/proc`, which lasts as long; `None` where none can be made, and then prints that the test
    /// is skipped.
    ///
    /// # Panics
    /// If it does not get ready.
    pub fn start_in_pid_namespace() -> Option<Self> {
        let mut command = pid_namespace()?;
        Some(Self::start_as(command.arg(binary("tailwater-tests", "iokernel")), &["shared"]))
    }

    /// As [`start`](Self::start), with this many descriptors at most.
    ///
    /// # Panics
    /// If it does not get ready.
    pub fn start_with_descriptors(most: u16) -> Self {
        let script = format!("ulimit -n {most}; exec \"$0\" \"$1\"");
        let mut command = Command::new("sh");
        Self::start_as(command.args(["-c", &script]).arg(binary("tailwater-tests", "iokernel")), &[])
    }

    fn start_as(command: &mut Command, settings: &[&str]) -> Self {
        let turn = super::turn();
        let socket = socket_name("target");
        let mut program = Program::start(command.arg(&socket).args(settings));
        assert_eq!(program.line().as_deref(), Some("ready"), "{}", program.errors());
        Self { socket, program, _turn: turn }
    }

    /// Starts the command `tailwater iokernel` with one core to lend, and a low limit of
    /// descriptors that it may raise; its log is on its standard error.
    ///
    /// # Panics
    /// If it does not get ready.
    pub fn start_command() -> Self {
        Self::start_command_with(&[])
    }

    /// As [`start_command`](Self::start_command), with more words.
    ///
    /// # Panics
    /// If it does not get ready.
    pub fn start_command_with(more: &[&str]) -> Self {
        Self::start_service(more, &[])
    }

    /// As [`start_command_with`](Self::start_command_with), with variables in its environment.
    ///
    /// # Panics
    /// If it does not get ready.
    pub fn start_service(more: &[&str], variables: &[(&str, &str)]) -> Self {
        let settings = ["--config", concat!(env!("CARGO_MANIFEST_DIR"), "/dedicated.toml")];
        let settings = if more.contains(&"--config") { &[][..] } else { &settings };
        Self::launch(&[settings, more].concat(), variables)
    }

    /// As [`start_command`](Self::start_command), without a configuration file.
    ///
    /// # Panics
    /// If it does not get ready.
    pub fn start_without_file() -> Self {
        Self::launch(&[], &[])
    }

    fn launch(more: &[&str], variables: &[(&str, &str)]) -> Self {
        let turn = super::turn();
        let socket = socket_name("target");
        let core = cpu_numbers().last().expect("this process runs somewhere").to_string();
        let words = ["iokernel", "--share-cores", "--managed-cores", &core, "--socket", &socket];
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -Sn 64; exec \"$0\" \"$@\""]);
        command
            .arg(binary("tailwater-cli", "tailwater"))
            .args(words)
            .args(more)
            .envs(variables.iter().copied());
        let mut program = Program::start(&mut command);
        program.error_line_with(" ready ");
        Self { socket, program, _turn: turn }
    }

    /// Its counters.
    ///
    /// # Panics
    /// If it does not answer.
    #[track_caller]
    pub fn stats(&self) -> serde_json::Value {
        self.try_stats().expect("statistics")
    }

    /// Its counters, or what it answered instead.
    ///
    /// # Errors
    /// The refusal.
    pub fn try_stats(&self) -> Result<serde_json::Value, String> {
        match ask(&dial(&self.socket), &ClientMessage::Stats)? {
            (ServerMessage::Stats(document), _) => Ok(document),
            (other, _) => Err(format!("{other:?}")),
        }
    }

    /// What it says that the user of this thread may do.
    ///
    /// # Panics
    /// If it does not answer.
    #[track_caller]
    pub fn rights(&self) -> String {
        match ask(&dial(&self.socket), &ClientMessage::Rights) {
            Ok((ServerMessage::Rights { may }, _)) => may,
            other => panic!("{other:?}"),
        }
    }

    /// Registers a program named `name` and waits until the polling thread has taken it in.
    ///
    /// # Panics
    /// If that does not happen.
    #[track_caller]
    pub fn admits(&self, name: &str) -> Intruder {
        Intruder::register(&self.socket, &RawSpec::new(name).register).expect("a newcomer is admitted")
    }
}

/// Returns unshare(1) for a program in a PID namespace of its own with its own `/proc`, all of
/// which ends with it; `None` where that is not possible, and then prints that the test is skipped.
pub fn pid_namespace() -> Option<Command> {
    if !geteuid().is_root() {
        eprintln!("skipped: only root enters the PID namespace of another process");
        return None;
    }
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
        command
    };
    let tried = unshare().arg("true").output();
    match tried {
        Ok(output) if output.status.success() => Some(unshare()),
        other => {
            eprintln!("skipped: unshare(1) makes no PID namespace here ({other:?})");
            None
        }
    }
}

/// Runs `deed` on a thread of user `uid`, with the rights of no other. Returns `None` where this
/// process may not change its user, or an IOKernel with its rights would refuse the programs of
/// another user, and then prints that the test is skipped.
///
/// # Panics
/// If `deed` does.
pub fn as_user<T: Send>(uid: u32, deed: impl FnOnce() -> T + Send) -> Option<T> {
    if !geteuid().is_root() {
        eprintln!("skipped: only root can act as another user");
        return None;
    }
    let needed = CapabilitySet::SYS_NICE | CapabilitySet::KILL;
    if !capabilities(None).is_ok_and(|held| held.effective.contains(needed)) {
        eprintln!("skipped: an IOKernel serves other users with CAP_SYS_NICE and CAP_KILL only");
        return None;
    }
    let become_user = || -> Result<T, Errno> {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(uid));
        set_thread_groups(&[])?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
        Ok(deed())
    };
    let done = std::thread::scope(|scope| scope.spawn(become_user).join());
    match done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
        Ok(result) => Some(result),
        // A container may lack the capability, or the user.
        Err(error) => {
            eprintln!("skipped: this process cannot act as user {uid} ({error})");
            None
        }
    }
}

/// Connects to a control socket; answers are waited for no longer than [`PATIENCE`].
///
/// # Panics
/// If no IOKernel listens there.
pub fn dial(socket: &str) -> OwnedFd {
    let connection = control::dial(socket).expect("an IOKernel listens");
    set_socket_timeout(&connection, Timeout::Recv, Some(PATIENCE)).expect("a timeout");
    connection
}

/// A place that a program was offered and has not taken yet.
#[derive(Debug)]
pub struct Offer {
    /// The control socket.
    pub connection: OwnedFd,
    /// What the IOKernel gave it.
    pub welcome: Welcome,
    /// The descriptors that came with it.
    pub files: Vec<OwnedFd>,
    kthreads: u16,
}

impl Offer {
    /// Registers at `socket`, up to `Welcome`.
    ///
    /// # Errors
    /// What the IOKernel answered instead.
    pub fn ask(socket: &str, request: &Register) -> Result<Self, String> {
        let connection = dial(socket);
        match ask(&connection, &ClientMessage::Register(request.clone()))? {
            (ServerMessage::Welcome(welcome), files) => {
                Ok(Self { connection, welcome, files, kthreads: request.kthreads })
            }
            (other, _) => Err(format!("{other:?}")),
        }
    }

    /// Maps its region, and makes all pages; later it cannot be mapped.
    ///
    /// # Panics
    /// If that is not possible.
    #[track_caller]
    pub fn map(&self) -> Mapping {
        Mapping::new(&self.files[0], "region").expect("a region that can be mapped")
    }

    /// Sends its kthreads, and waits for `Ready`.
    ///
    /// # Errors
    /// What the IOKernel answered instead.
    pub fn take(self) -> Result<Intruder, String> {
        let Self { connection, welcome, files, kthreads } = self;
        let (tids, kthreads): (Vec<i32>, Vec<_>) = (0..kthreads).map(|_| sleeper()).unzip();
        match ask(&connection, &ClientMessage::Kthreads { tids })? {
            (ServerMessage::Ready, _) => Ok(Intruder { connection, welcome, files, _kthreads: kthreads }),
            (other, _) => Err(format!("{other:?}")),
        }
    }
}

/// A registered program without a runtime: its kthreads are threads of the test that sleep.
#[derive(Debug)]
pub struct Intruder {
    /// The control socket.
    pub connection: OwnedFd,
    /// What the IOKernel gave it.
    pub welcome: Welcome,
    /// The descriptors that came with it.
    pub files: Vec<OwnedFd>,
    _kthreads: Vec<Sender<()>>,
}

impl Intruder {
    /// Registers at `socket`, up to `Ready`, with all of its memory made.
    ///
    /// # Errors
    /// What the IOKernel answered instead.
    pub fn register(socket: &str, request: &Register) -> Result<Self, String> {
        let offer = Offer::ask(socket, request)?;
        drop(offer.map());
        offer.take()
    }

    /// Its doorbell.
    pub fn doorbell(&self) -> &OwnedFd {
        &self.files[1]
    }
}

fn ask(
    connection: impl AsFd + Copy,
    message: &ClientMessage,
) -> Result<(ServerMessage, Vec<OwnedFd>), String> {
    let text = |error: ControlError| error.to_string();
    control::send(connection, message, &[]).map_err(text)?;
    control::receive(connection).map_err(text)
}

/// A thread that sleeps until the sender is dropped, and its id.
fn sleeper() -> (i32, Sender<()>) {
    let (tid_out, tid_in) = channel();
    let (alive, until_dropped) = channel::<()>();
    std::thread::spawn(move || {
        // Fails only when the test has panicked.
        let _ = tid_out.send(rustix::thread::gettid().as_raw_nonzero().get());
        let _ = until_dropped.recv();
    });
    (tid_in.recv().expect("the thread says its id"), alive)
}
