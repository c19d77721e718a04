//! The operator's settings: `TAILWATER_*` variables, and the file that one of them names.

#[cfg(feature = "debug")]
use super::dump_signal::DumpSignal;
use super::settings::Settings;
use super::{OnIoKernelLoss, ProgramClass, variables};
use crate::error::ConfigError;
use std::error::Error;
use std::ffi::OsString;
use std::str::FromStr;
use std::sync::OnceLock;
use tailwater_shm::control::parse_listens;

/// The environment's variables as they were, if the program may change them before the runtime
/// starts.
static KEPT: OnceLock<Vec<(OsString, OsString)>> = OnceLock::new();

/// Keeps the variables that the runtime reads as they are now.
pub fn keep_environment() {
    let is_own = |(name, _): &(OsString, OsString)| name.as_encoded_bytes().starts_with(b"TAILWATER_");
    KEPT.get_or_init(|| std::env::vars_os().filter(is_own).collect());
}

/// Returns whether the variables were kept, as for a program that was not written for this runtime.
pub fn keeps_environment() -> bool {
    KEPT.get().is_some()
}

/// Returns a variable of the environment, as it is or was kept.
pub fn kept(name: &str) -> Option<OsString> {
    match KEPT.get() {
        Some(all) => all.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone()),
        None => std::env::var_os(name),
    }
}

/// Returns the settings in the environment.
///
/// # Errors
/// If a variable is misspelt, malformed, or for a feature that is left out.
pub fn environment() -> Result<Settings, ConfigError> {
    for name in std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()) {
        if let Some(meant) = variables::meant(&name) {
            return Err(ConfigError::UnknownVariable { name, meant });
        }
    }
    #[cfg(not(feature = "debug"))]
    refuse("TAILWATER_DUMP_SIGNAL", "debug")?;
    #[cfg(not(feature = "tcp"))]
    refuse("TAILWATER_TCP_CONNECTIONS", "tcp")?;
    #[cfg(not(feature = "libc-waits"))]
    refuse("TAILWATER_ADOPT_LIBC_WAITS", "libc-waits")?;
    Ok(Settings {
        iokernel: parsed("TAILWATER_IOKERNEL")?,
        name: parsed("TAILWATER_NAME")?,
        kthreads: parsed("TAILWATER_KTHREADS")?,
        guaranteed: parsed("TAILWATER_GUARANTEED")?,
        class: variable("TAILWATER_CLASS", class)?,
        ip: parsed("TAILWATER_IP")?,
        listen: variable("TAILWATER_LISTEN", |text| Ok(parse_listens(text)?))?,
        replace: parsed("TAILWATER_REPLACE")?,
        on_iokernel_loss: variable("TAILWATER_ON_IOKERNEL_LOSS", on_iokernel_loss)?,
        iokernel_wait_ms: parsed("TAILWATER_IOKERNEL_WAIT_MS")?,
        exit_linger_ms: parsed("TAILWATER_EXIT_LINGER_MS")?,
        stack_size: parsed("TAILWATER_STACK_SIZE")?,
        idle_timeout_us: parsed("TAILWATER_IDLE_TIMEOUT_US")?,
        ring_bytes: parsed("TAILWATER_RING_BYTES")?,
        blocking_threads: parsed("TAILWATER_BLOCKING_THREADS")?,
        stall_timeout_ms: parsed("TAILWATER_STALL_TIMEOUT_MS")?,
        #[cfg(feature = "debug")]
        dump_signal: variable("TAILWATER_DUMP_SIGNAL", dump_signal)?,
        shared_tls: false,
        quantum_us: parsed("TAILWATER_QUANTUM_US")?,
        #[cfg(feature = "tcp")]
        tcp_connections: parsed("TAILWATER_TCP_CONNECTIONS")?,
        packet_stealing: parsed("TAILWATER_PACKET_STEALING")?,
        #[cfg(feature = "libc-waits")]
        adopt_libc_waits: parsed("TAILWATER_ADOPT_LIBC_WAITS")?,
    })
}

/// Returns the settings in the file that `TAILWATER_CONFIG` names, none without that variable.
///
/// # Errors
/// If the file cannot be read, or has an unknown or malformed setting.
#[cfg(feature = "config-file")]
pub fn file() -> Result<Settings, ConfigError> {
    let Some(path) = parsed::<String>("TAILWATER_CONFIG")? else { return Ok(Settings::default()) };
    match std::fs::read_to_string(&path) {
        Ok(text) => read(&text).map_err(|source| ConfigError::InvalidFile { path, source }),
        Err(source) => Err(ConfigError::UnreadableFile { path, source }),
    }
}

/// Reads the text of a file.
///
/// # Errors
/// What is wrong, and where; of an unknown setting also the one that was probably meant.
#[cfg(feature = "config-file")]
fn read(text: &str) -> Result<Settings, Cause> {
    toml::from_str(text).map_err(|error| {
        // The parser's message has the unknown name in backquotes.
        let unknown = error.message().strip_prefix("unknown field `").and_then(|rest| rest.split('`').next());
        match unknown.and_then(variables::meant_in_file) {
            Some(meant) => format!("{}\ndid you mean `{meant}`?", error.to_string().trim_end()).into(),
            None => error.into(),
        }
    })
}

/// Returns no settings: files are not read.
///
/// # Errors
/// If `TAILWATER_CONFIG` names a file.
#[cfg(not(feature = "config-file"))]
pub fn file() -> Result<Settings, ConfigError> {
    refuse("TAILWATER_CONFIG", "config-file")?;
    Ok(Settings::default())
}

/// Refuses a variable that would have no effect.
#[cfg(not(all(feature = "config-file", feature = "debug", feature = "libc-waits", feature = "tcp")))]
fn refuse(variable: &'static str, feature: &'static str) -> Result<(), ConfigError> {
    debug_assert!(variables::is_known(variable), "{variable} would be taken for a misspelling");
    match kept(variable) {
        Some(value) if !value.is_empty() => Err(ConfigError::MissingFeature { variable, feature }),
        _ => Ok(()),
    }
}

type Cause = Box<dyn Error + Send + Sync>;

fn class(text: &str) -> Result<ProgramClass, Cause> {
    match text {
        "latency-critical" => Ok(ProgramClass::LatencyCritical),
        "best-effort" => Ok(ProgramClass::BestEffort),
        _ => Err("expected latency-critical or best-effort".into()),
    }
}

fn on_iokernel_loss(text: &str) -> Result<OnIoKernelLoss, Cause> {
    match text {
        "wait" => Ok(OnIoKernelLoss::Wait),
        "continue" => Ok(OnIoKernelLoss::Continue),
        "exit" => Ok(OnIoKernelLoss::Exit),
        _ => Err("expected wait, continue or exit".into()),
    }
}

#[cfg(feature = "debug")]
fn dump_signal(text: &str) -> Result<DumpSignal, Cause> {
    match text {
        "none" => Ok(DumpSignal::None),
        "quit" => Ok(DumpSignal::Quit),
        "usr1" => Ok(DumpSignal::Usr1),
        "usr2" => Ok(DumpSignal::Usr2),
        _ => Err("expected none, quit, usr1 or usr2".into()),
    }
}

fn parsed<T: FromStr<Err: Error + Send + Sync + 'static>>(
    name: &'static str,
) -> Result<Option<T>, ConfigError> {
    variable(name, |text| parse(name, text))
}

fn parse<T: FromStr<Err: Error + Send + Sync + 'static>>(name: &str, text: &str) -> Result<T, Cause> {
    text.parse().map_err(|error: T::Err| match text.bytes().all(|byte| byte.is_ascii_digit()) {
        // It is too large, which the error says.
        true => error.into(),
        false => format!("expected {}", expected(name)).into(),
    })
}

/// Returns in words what a variable takes.
fn expected(name: &str) -> &'static str {
    match name {
        "TAILWATER_IP" => "an IPv4 address, such as 10.77.0.5",
        "TAILWATER_REPLACE" | "TAILWATER_PACKET_STEALING" | "TAILWATER_ADOPT_LIBC_WAITS" => "true or false",
        _ if name.ends_with("_US") => "a number of microseconds without a unit, such as 50",
        _ if name.ends_with("_MS") => "a number of milliseconds without a unit, such as 100",
        _ => "a number",
    }
}

/// Reads a variable; one that is empty counts as absent.
fn variable<T>(
    name: &'static str,
    parse: impl FnOnce(&str) -> Result<T, Cause>,
) -> Result<Option<T>, ConfigError> {
    debug_assert!(variables::is_known(name), "{name} would be taken for a misspelling");
    let Some(value) = kept(name).filter(|value| !value.is_empty()) else { return Ok(None) };
    match value.to_str().map_or_else(|| Err("not Unicode".into()), parse) {
        Ok(value) => Ok(Some(value)),
        Err(source) => Err(ConfigError::InvalidVariable { name, value, source }),
    }
}

#[cfg(all(test, feature = "config-file"))]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_setting_in_the_file_is_named_with_the_one_that_was_meant() {
        for (text, meant) in [
            ("kthread = 3", "kthreads"),
            ("idle_timeout_us = 3", "idle-timeout-us"),
            ("stack = 65536", "stack-size"),
        ] {
            let error = read(text).unwrap_err().to_string();
            let name = text.split(' ').next().unwrap();
            let question = format!("did you mean `{meant}`?");
            assert!(error.contains(name) && error.ends_with(&question), "{error}");
        }
        assert!(!read("colour = 3").unwrap_err().to_string().contains("did you mean"));
    }

    #[test]
    fn a_value_of_the_wrong_form_is_refused_with_what_the_variable_takes() {
        let why = |name, text| parse::<u16>(name, text).unwrap_err().to_string();
        assert!(why("TAILWATER_QUANTUM_US", "3us").contains("microseconds without a unit"));
        assert!(why("TAILWATER_EXIT_LINGER_MS", "3s").contains("milliseconds without a unit"));
        assert!(why("TAILWATER_KTHREADS", "abc").ends_with("a number"));
        assert!(why("TAILWATER_KTHREADS", "70000").contains("too large"));
        let why = parse::<bool>("TAILWATER_PACKET_STEALING", "yes").unwrap_err().to_string();
        assert!(why.contains("true or false"), "{why}");
    }

    #[test]
    fn the_file_has_the_names_of_the_variables_with_hyphens() {
        for name in ["kthreads = 3", "exit-linger-ms = 1", "stack-size = 65536", "idle-timeout-us = 1"] {
            read(name).unwrap();
        }
    }

    #[test]
    #[cfg(feature = "debug")]
    fn the_file_and_the_environment_name_dump_signals_alike() {
        for text in ["none", "quit", "usr1", "usr2"] {
            let file: Settings = toml::from_str(&format!("dump-signal = \"{text}\"")).unwrap();
            assert_eq!(file.dump_signal, Some(dump_signal(text).unwrap()));
        }
        assert!(dump_signal("hup").is_err());
    }

    #[test]
    fn the_file_and_the_environment_name_classes_alike() {
        for text in ["latency-critical", "best-effort"] {
            let file: Settings = toml::from_str(&format!("class = \"{text}\"")).unwrap();
            assert_eq!(file.class, Some(class(text).unwrap()));
        }
        assert!(class("guaranteed").is_err());
    }

    #[test]
    fn the_file_and_the_environment_name_reactions_to_a_loss_alike() {
        for text in ["wait", "continue", "exit"] {
            let file: Settings = toml::from_str(&format!("on-iokernel-loss = \"{text}\"")).unwrap();
            assert_eq!(file.on_iokernel_loss, Some(on_iokernel_loss(text).unwrap()));
        }
        assert!(on_iokernel_loss("restart").is_err());
    }

    #[test]
    fn the_file_can_turn_packet_stealing_off() {
        let file: Settings = toml::from_str("packet-stealing = false").unwrap();
        assert_eq!(file.packet_stealing, Some(false));
    }
}
