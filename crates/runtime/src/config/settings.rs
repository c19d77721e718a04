//! The settings as one source gives them, and all of them together, checked.

#[cfg(feature = "debug")]
use super::dump_signal::DumpSignal;
use super::{DEFAULT_RING, OnIoKernelLoss, ProgramClass};
use crate::error::ConfigError;
use crate::ground::sleepers::MAX_SLEEPERS;
use crate::records::stack::{MAX_STACK, MIN_STACK};
use std::ffi::OsStr;
use std::net::Ipv4Addr;
use std::sync::OnceLock;
use std::time::Duration;
use tailwater_shm::control::{Listen, MAX_LISTEN, MAX_NAME, is_name};
use tailwater_shm::layout::RegionSpec;

const DEFAULT_STACK: usize = 256 * 1024;
const DEFAULT_IDLE: Duration = Duration::from_micros(50);
const DEFAULT_WAIT: Duration = Duration::from_secs(60);
/// Long enough for several retransmissions.
const DEFAULT_EXIT_LINGER: Duration = Duration::from_secs(60);
const MAX_EXIT_LINGER: Duration = Duration::from_secs(3600);
const DEFAULT_STALL: Duration = Duration::from_millis(100);
const DEFAULT_BLOCKING_THREADS: u16 = 256;
const MAX_BLOCKING_THREADS: u16 = 4096;

/// Settings from one source. Every field is optional.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "config-file",
    derive(serde::Deserialize),
    serde(deny_unknown_fields, default, rename_all = "kebab-case")
)]
pub struct Settings {
    pub iokernel: Option<String>,
    pub name: Option<String>,
    pub kthreads: Option<u16>,
    pub guaranteed: Option<u16>,
    pub class: Option<ProgramClass>,
    pub ip: Option<Ipv4Addr>,
    pub listen: Option<Vec<Listen>>,
    pub replace: Option<bool>,
    pub on_iokernel_loss: Option<OnIoKernelLoss>,
    pub iokernel_wait_ms: Option<u64>,
    pub exit_linger_ms: Option<u64>,
    pub stack_size: Option<usize>,
    pub idle_timeout_us: Option<u64>,
    pub ring_bytes: Option<u32>,
    pub blocking_threads: Option<u16>,
    pub stall_timeout_ms: Option<u64>,
    #[cfg(feature = "debug")]
    pub dump_signal: Option<DumpSignal>,
    /// A promise of the program, which an operator cannot make for it.
    #[cfg_attr(feature = "config-file", serde(skip))]
    pub shared_tls: bool,
    pub quantum_us: Option<u64>,
    #[cfg(feature = "tcp")]
    pub tcp_connections: Option<u32>,
    pub packet_stealing: Option<bool>,
    #[cfg(feature = "libc-waits")]
    pub adopt_libc_waits: Option<bool>,
}

impl Settings {
    /// Returns these settings, and those of `next` that are not among them.
    pub fn or(self, next: Self) -> Self {
        Self {
            iokernel: self.iokernel.or(next.iokernel),
            name: self.name.or(next.name),
            kthreads: self.kthreads.or(next.kthreads),
            guaranteed: self.guaranteed.or(next.guaranteed),
            class: self.class.or(next.class),
            ip: self.ip.or(next.ip),
            listen: self.listen.or(next.listen),
            replace: self.replace.or(next.replace),
            on_iokernel_loss: self.on_iokernel_loss.or(next.on_iokernel_loss),
            iokernel_wait_ms: self.iokernel_wait_ms.or(next.iokernel_wait_ms),
            exit_linger_ms: self.exit_linger_ms.or(next.exit_linger_ms),
            stack_size: self.stack_size.or(next.stack_size),
            idle_timeout_us: self.idle_timeout_us.or(next.idle_timeout_us),
            ring_bytes: self.ring_bytes.or(next.ring_bytes),
            blocking_threads: self.blocking_threads.or(next.blocking_threads),
            stall_timeout_ms: self.stall_timeout_ms.or(next.stall_timeout_ms),
            #[cfg(feature = "debug")]
            dump_signal: self.dump_signal.or(next.dump_signal),
            shared_tls: self.shared_tls || next.shared_tls,
            quantum_us: self.quantum_us.or(next.quantum_us),
            #[cfg(feature = "tcp")]
            tcp_connections: self.tcp_connections.or(next.tcp_connections),
            packet_stealing: self.packet_stealing.or(next.packet_stealing),
            #[cfg(feature = "libc-waits")]
            adopt_libc_waits: self.adopt_libc_waits.or(next.adopt_libc_waits),
        }
    }
}

/// A complete, checked configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Control socket of the IOKernel; `None` runs standalone.
    pub iokernel: Option<String>,
    /// Name in statistics.
    pub name: String,
    /// Number of kthreads: the maximum number of cores used at once.
    pub kthreads: u16,
    /// Number of cores that are never taken away while in use.
    pub guaranteed: u16,
    /// Allocation class.
    pub class: ProgramClass,
    /// Requested address.
    pub ip: Option<Ipv4Addr>,
    /// Ports at which it listens.
    pub listen: Vec<Listen>,
    /// True if it takes the place of a running instance, and lets another take its own.
    pub replace: bool,
    /// What happens when the IOKernel is lost.
    pub on_iokernel_loss: OnIoKernelLoss,
    /// How long another IOKernel is waited for; `None`: for ever.
    pub iokernel_wait: Option<Duration>,
    /// How long the end of the process waits for data to be delivered, at most.
    pub exit_linger: Duration,
    /// Usable bytes of each user thread's stack.
    pub stack_size: usize,
    /// How long an idle kthread polls before it sleeps; `None` polls for ever.
    pub idle_timeout: Option<Duration>,
    /// Size of each packet ring in bytes.
    pub ring_bytes: u32,
    /// Maximum number of ordinary threads that run blocking calls.
    pub blocking_threads: u16,
    /// How long a thread may hold up its kthread before it is reported; `None`: never.
    pub stall_timeout: Option<Duration>,
    /// The signal that dumps all threads.
    #[cfg(feature = "debug")]
    pub dump_signal: DumpSignal,
    /// True if user threads use their kthread's thread-local storage.
    pub shared_tls: bool,
    /// Time slice of a thread while others wait; `None`: unlimited.
    pub quantum: Option<Duration>,
    /// Maximum number of open TCP connections.
    #[cfg(feature = "tcp")]
    pub tcp_connections: u32,
    /// True if a kthread without work handles frames of another kthread that has a core.
    pub packet_stealing: bool,
    /// True if waits in the C library give the core away.
    #[cfg(feature = "libc-waits")]
    pub adopt_libc_waits: bool,
}

impl Config {
    /// Checks `settings`, and completes them by the defaults.
    ///
    /// # Errors
    /// [`ConfigError::OutOfRange`], [`ConfigError::Impossible`] or [`ConfigError::ReplacesNone`].
    pub fn complete(settings: Settings) -> Result<Self, ConfigError> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from).min(64) as u16;
        let most_kthreads =
            if settings.iokernel.is_some() { tailwater_shm::layout::MAX_KTHREADS } else { MAX_SLEEPERS };
        let kthreads = settings.kthreads.unwrap_or(cpus);
        check("kthreads", kthreads, 1, most_kthreads)?;
        let stack_size = settings.stack_size.unwrap_or(DEFAULT_STACK);
        check("stack_size", stack_size as u64, MIN_STACK as u64, MAX_STACK as u64)?;
        let exit_linger = settings.exit_linger_ms.map_or(DEFAULT_EXIT_LINGER, Duration::from_millis);
        check("exit_linger_ms", exit_linger.as_millis() as u64, 0, MAX_EXIT_LINGER.as_millis() as u64)?;
        let blocking_threads = settings.blocking_threads.unwrap_or(DEFAULT_BLOCKING_THREADS);
        check("blocking_threads", blocking_threads, 1, MAX_BLOCKING_THREADS)?;
        let stall_timeout = settings.stall_timeout_ms.map_or(DEFAULT_STALL, Duration::from_millis);
        let iokernel_wait = settings.iokernel_wait_ms.map_or(DEFAULT_WAIT, Duration::from_millis);
        let idle_timeout = settings.idle_timeout_us.map_or(DEFAULT_IDLE, Duration::from_micros);
        let guaranteed = settings.guaranteed.unwrap_or(0);
        let ring_bytes = settings.ring_bytes.unwrap_or(DEFAULT_RING);
        check_registration(settings.name.as_deref(), kthreads, guaranteed, ring_bytes)?;
        let listen = settings.listen.unwrap_or_default();
        check("listen: number of ports", listen.len() as u64, 0, MAX_LISTEN as u64)?;
        if settings.replace == Some(true) && settings.name.is_none() {
            return Err(ConfigError::ReplacesNone);
        }
        Ok(Self {
            iokernel: settings.iokernel,
            name: settings.name.unwrap_or_else(program_name),
            kthreads,
            guaranteed,
            class: settings.class.unwrap_or_default(),
            ip: settings.ip,
            listen,
            replace: settings.replace.unwrap_or(false),
            on_iokernel_loss: settings.on_iokernel_loss.unwrap_or_default(),
            iokernel_wait: (!iokernel_wait.is_zero()).then_some(iokernel_wait),
            exit_linger,
            stack_size,
            idle_timeout: (!idle_timeout.is_zero()).then_some(idle_timeout),
            ring_bytes,
            blocking_threads,
            stall_timeout: (!stall_timeout.is_zero()).then_some(stall_timeout),
            #[cfg(feature = "debug")]
            dump_signal: settings.dump_signal.unwrap_or_default(),
            shared_tls: settings.shared_tls,
            quantum: settings.quantum_us.map(Duration::from_micros).filter(|quantum| !quantum.is_zero()),
            #[cfg(feature = "tcp")]
            tcp_connections: settings.tcp_connections.unwrap_or(crate::net::DEFAULT_CONNECTIONS),
            packet_stealing: settings.packet_stealing.unwrap_or(true),
            #[cfg(feature = "libc-waits")]
            adopt_libc_waits: settings.adopt_libc_waits.unwrap_or(false),
        })
    }
}

/// Checks what every IOKernel would refuse, also for a program that runs without one: it is found
/// before the program is moved to a machine that has one.
fn check_registration(
    name: Option<&str>,
    kthreads: u16,
    guaranteed: u16,
    ring_bytes: u32,
) -> Result<(), ConfigError> {
    if let Some(name) = name.filter(|name| !is_name(name)) {
        let shown: String = name.chars().take(MAX_NAME).flat_map(char::escape_default).collect();
        let why = format!(
            "name \"{shown}\" is not 1 to {MAX_NAME} printable ASCII characters, the first and the last of them no blanks"
        );
        return Err(ConfigError::Impossible { setting: "name", why });
    }
    if guaranteed > kthreads {
        let why = format!("guaranteed {guaranteed} is above kthreads {kthreads}: a kthread uses one core");
        return Err(ConfigError::Impossible { setting: "guaranteed", why });
    }
    RegionSpec::new(kthreads, ring_bytes)
        .map(|_| ())
        .map_err(|error| ConfigError::Impossible { setting: "ring_bytes", why: error.to_string() })
}

fn check<N: Into<u64>>(setting: &'static str, value: N, min: N, max: N) -> Result<(), ConfigError> {
    let (value, min, max) = (value.into(), min.into(), max.into());
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(ConfigError::OutOfRange { setting, value, min, max })
}

/// Returns the default name: program name and process id, which no other process of this container
/// has.
fn program_name() -> String {
    format!("{}.{}", program(), std::process::id())
}

/// Returns the name of the program, as it was at the first call: some programs write over their
/// arguments, to show in lists of processes what they do.
pub fn program() -> &'static str {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    PROGRAM.get_or_init(|| short_name(&std::env::args_os().next().unwrap_or_default()))
}

/// Returns the part of a program's path that is its name, in ASCII.
fn short_name(path: &OsStr) -> String {
    let path = path.to_string_lossy();
    let base = path.rsplit('/').next().unwrap_or_default();
    let short: String = base.chars().filter(char::is_ascii_graphic).take(48).collect();
    if short.is_empty() { "runtime".to_owned() } else { short }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_any_path_has_a_name() {
        let name = |path: &[u8]| short_name(std::os::unix::ffi::OsStrExt::from_bytes(path));
        assert_eq!([name(b"/usr/bin/kv"), name(b"kv"), name(b"a/k\xffv")], ["kv"; 3]);
        assert_eq!([name(b""), name(b"bin/"), name(b"\xff")], ["runtime"; 3]);
    }

    #[test]
    fn an_earlier_source_wins_over_later_ones() {
        let builder = Settings { name: Some("b".into()), ..Settings::default() };
        let environment = Settings { name: Some("e".into()), kthreads: Some(3), ..Settings::default() };
        let file = Settings { kthreads: Some(5), guaranteed: Some(2), ..Settings::default() };
        let config = Config::complete(builder.or(environment).or(file)).unwrap();
        assert_eq!((config.name.as_str(), config.kthreads, config.guaranteed), ("b", 3, 2));
    }

    #[test]
    fn impossible_numbers_are_refused_with_their_range() {
        for (settings, range) in [
            (Settings { kthreads: Some(0), ..Settings::default() }, "kthreads 0 is out of range: 1 to 64"),
            (Settings { kthreads: Some(65), ..Settings::default() }, "kthreads 65 is out of range: 1 to 64"),
            (
                Settings { stack_size: Some(100), ..Settings::default() },
                "stack_size 100 is out of range: 16384 to 137438953472",
            ),
            (
                Settings { stack_size: Some(usize::MAX), ..Settings::default() },
                "stack_size 18446744073709551615 is out of range: 16384 to 137438953472",
            ),
            (
                Settings { blocking_threads: Some(0), ..Settings::default() },
                "blocking_threads 0 is out of range: 1 to 4096",
            ),
        ] {
            let said = Config::complete(settings).unwrap_err().to_string();
            let setting = range.split(' ').next().unwrap();
            let option = format!("--{} of `tailwater run`", setting.replace('_', "-"));
            assert!(said.starts_with(range) && said.contains(&option), "{said}");
        }
    }

    #[test]
    fn what_every_iokernel_refuses_is_refused_without_one() {
        let named = |name: &str| Settings { name: Some(name.to_owned()), ..Settings::default() };
        for (settings, part) in [
            (named(""), "--name"),
            (named(" web"), "no blanks"),
            (named("w\u{202e}b"), "w\\u{202e}b"),
            (named(&"x".repeat(65)), "1 to 64"),
            (Settings { guaranteed: Some(5), kthreads: Some(4), ..Settings::default() }, "kthreads 4"),
            (Settings { ring_bytes: Some(1000), ..Settings::default() }, "--ring-bytes"),
            (Settings { ring_bytes: Some(1 << 25), ..Settings::default() }, "32768 to 16777216"),
        ] {
            let said = Config::complete(settings).unwrap_err().to_string();
            assert!(said.contains(part) && said.contains("TAILWATER_"), "{said}");
        }
        let possible = Settings { guaranteed: Some(4), kthreads: Some(4), ..named("web 1") };
        assert!(Config::complete(possible).is_ok());
    }

    #[test]
    fn a_zero_stall_timeout_reports_nothing() {
        let config = Config::complete(Settings { stall_timeout_ms: Some(0), ..Settings::default() }).unwrap();
        assert_eq!(config.stall_timeout, None);
    }

    #[test]
    fn packets_are_stolen_unless_that_is_turned_off() {
        let stealing = |packet_stealing| {
            Config::complete(Settings { packet_stealing, ..Settings::default() }).unwrap().packet_stealing
        };
        assert_eq!([None, Some(true), Some(false)].map(stealing), [true, true, false]);
    }

    #[test]
    fn threads_have_no_time_slice_unless_one_is_set() {
        let quantum =
            |quantum_us| Config::complete(Settings { quantum_us, ..Settings::default() }).unwrap().quantum;
        assert_eq!((quantum(None), quantum(Some(0))), (None, None));
        assert_eq!(quantum(Some(50)), Some(Duration::from_micros(50)));
    }

    #[test]
    fn a_zero_idle_timeout_polls_for_ever() {
        let config = Config::complete(Settings { idle_timeout_us: Some(0), ..Settings::default() }).unwrap();
        assert_eq!(config.idle_timeout, None);
    }
}
