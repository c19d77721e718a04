//! The setting: which signal has all user threads dumped.

/// The signal that makes the process [dump](crate::dump) all user threads to standard error.
///
/// # Examples
/// ```no_run
/// tailwater::RuntimeBuilder::new().dump_signal(tailwater::DumpSignal::Usr1).run(|| ()).unwrap();
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "config-file", derive(serde::Deserialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum DumpSignal {
    /// No signal.
    None,
    /// `SIGQUIT`: Ctrl-\ in a terminal. The program continues afterwards.
    #[default]
    Quit,
    /// `SIGUSR1`.
    Usr1,
    /// `SIGUSR2`.
    Usr2,
}

impl DumpSignal {
    /// Returns its number on Linux.
    pub(crate) fn number(self) -> Option<i32> {
        match self {
            Self::None => None,
            Self::Quit => Some(libc::SIGQUIT),
            Self::Usr1 => Some(libc::SIGUSR1),
            Self::Usr2 => Some(libc::SIGUSR2),
        }
    }
}
