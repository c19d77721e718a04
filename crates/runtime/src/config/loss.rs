//! The choices of a runtime whose IOKernel is lost.

/// What a program does when its IOKernel has ended, or has ended its registration.
///
/// # Examples
/// ```
/// use tailwater::{OnIoKernelLoss, RuntimeBuilder};
///
/// let service = RuntimeBuilder::new().on_iokernel_loss(OnIoKernelLoss::Exit);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "config-file", derive(serde::Deserialize), serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum OnIoKernelLoss {
    /// Waits for another IOKernel at the same socket, on ordinary cores: sockets keep their state,
    /// and what is sent to other hosts waits. After the time set by
    /// [`RuntimeBuilder::iokernel_wait`](crate::RuntimeBuilder::iokernel_wait), calls fail as with
    /// `Continue` until there is another IOKernel, which the program goes on to look for. If the
    /// IOKernel has ended the registration for a reason, goes on as with `Continue`, at once and
    /// for ever.
    #[default]
    Wait,
    /// Goes on, on ordinary cores and without network: calls that need other hosts fail with
    /// [`NetworkDown`](std::io::ErrorKind::NetworkDown).
    Continue,
    /// Exits with status [`EXIT_STATUS`](Self::EXIT_STATUS), for a supervisor that starts it again.
    /// Nothing is run before, neither destructors nor what atexit(3) was given.
    Exit,
}

impl OnIoKernelLoss {
    /// The exit status of a program that has lost its IOKernel: `EX_TEMPFAIL` of sysexits(3).
    pub const EXIT_STATUS: i32 = 75;
}
