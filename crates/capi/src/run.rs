//! The start of the runtime, and its configuration.

use crate::border::{self, Call, FOREVER};
use crate::memory;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::time::Duration;
use tailwater::{AttachError, ProgramClass, RuntimeBuilder, StartError};

/// A class that the environment decides.
pub const TW_CLASS_UNSET: u32 = 0;
/// A service, which takes cores from batch jobs at once.
pub const TW_CLASS_LATENCY_CRITICAL: u32 = 1;
/// A batch job, which has the cores that are left.
pub const TW_CLASS_BEST_EFFORT: u32 = 2;

/// Flag of `tw_config`: the program has an allocator of its own, or allocates on user threads
/// within `tw_no_preempt` only. Without this flag `tw_run` fails where `malloc` is not Tailwater's.
pub const TW_FOREIGN_MALLOC: u32 = 1;
/// Flag of `tw_config`: a kthread handles the packets of its own flow groups only.
pub const TW_NO_PACKET_STEALING: u32 = 2;

/// Settings of the runtime. A field that is 0 or NULL leaves the setting to the environment
/// (`TAILWATER_*`), then to the file that `TAILWATER_CONFIG` names, then to the default.
///
/// Initialise it by `TW_CONFIG_INIT`: later versions add fields at the end.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct tw_config {
    /// Size of this structure in bytes.
    pub size: usize,
    /// Address of an IOKernel's control socket; without one the program runs standalone.
    pub iokernel: *const c_char,
    /// Name in the IOKernel's statistics.
    pub name: *const c_char,
    /// IPv4 address to request from the IOKernel, in text form.
    pub ip: *const c_char,
    /// Usable bytes of each user thread's stack; 256 KiB by default.
    pub stack_size: usize,
    /// Maximum number of cores that the program uses at once; the number of CPUs by default.
    pub kthreads: u32,
    /// Number of cores that the IOKernel never takes away while they are in use.
    pub guaranteed: u32,
    /// `TW_CLASS_...`.
    pub allocation_class: u32,
    /// `TW_FOREIGN_MALLOC`, `TW_NO_PACKET_STEALING`.
    pub flags: u32,
    /// Time slice of a thread while others wait, in nanoseconds; none by default.
    pub quantum_ns: u64,
    /// How long an idle kthread polls before it sleeps; `TW_FOREVER` never sleeps.
    pub idle_timeout_ns: u64,
    /// How long a thread may reach no poll point before that is reported; `TW_FOREVER` reports
    /// nothing.
    pub stall_timeout_ns: u64,
    /// Maximum number of ordinary threads that run `tw_blocking` calls.
    pub blocking_threads: u32,
    /// Maximum number of open TCP connections.
    pub tcp_connections: u32,
    /// Size of each packet ring in bytes.
    pub ring_bytes: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Where `tw_run` writes the reason if the runtime cannot start, with a final NUL byte; NULL
    /// for standard error.
    pub error: *mut c_char,
    /// Bytes at `error`.
    pub error_size: usize,
}

/// Why a runtime did not start: the error number, and the text for the user.
struct Failure(c_int, String);

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        let number = match &error {
            StartError::Config(_) => libc::EINVAL,
            StartError::AlreadyRunning => libc::EBUSY,
            StartError::Stack(_) => libc::ENOMEM,
            StartError::System { source, .. } | StartError::Attach(AttachError::Socket { source, .. }) => {
                border::number(source)
            }
            StartError::Attach(_) => libc::ECONNREFUSED,
            _ => libc::ENOTSUP,
        };
        Self(number, error.to_string())
    }
}

impl Failure {
    fn invalid(what: impl Into<String>) -> Self {
        Self(libc::EINVAL, what.into())
    }
}

/// True since the runtime has started.
static RUNNING: AtomicBool = AtomicBool::new(false);

/// Returns whether there is a runtime.
pub(crate) fn is_running() -> bool {
    RUNNING.load(Ordering::Relaxed)
}

/// Returns a copy of `config`, and whether it is valid.
///
/// # Safety
/// `config` is null or has `size` bytes.
unsafe fn read(config: *const tw_config) -> (tw_config, Result<(), Failure>) {
    // SAFETY: 1. by the caller's contract. 2. Numbers and addresses.
    let (copy, checked) = unsafe { border::sized(config) };
    let explained = checked.map_err(|number| {
        let why = match number {
            libc::E2BIG => {
                "tw_config has fields that this version of libtailwater does not know: use the header and the \
                 library of one version"
            }
            _ => "tw_config.size is impossible: initialise the structure with TW_CONFIG_INIT",
        };
        Failure(number, why.to_owned())
    });
    (copy, explained)
}

/// Returns a text of the configuration; `None` for a null pointer.
///
/// # Safety
/// `text` is null or ends with a NUL byte.
unsafe fn text(field: &str, text: *const c_char) -> Result<Option<String>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: by the caller's contract.
    let text = unsafe { CStr::from_ptr(text) };
    let text = text.to_str().map_err(|_| Failure::invalid(format!("tw_config.{field} is not UTF-8")))?;
    Ok(Some(text.to_owned()))
}

fn small(field: &str, value: u32) -> Result<u16, Failure> {
    u16::try_from(value)
        .map_err(|_| Failure::invalid(format!("tw_config.{field} is {value}: use at most {}", u16::MAX)))
}

/// Returns a time; zero for "for ever" and "never", as the builder has it.
fn time(nanoseconds: u64) -> Duration {
    if nanoseconds == FOREVER { Duration::ZERO } else { Duration::from_nanos(nanoseconds) }
}

/// Returns the builder of a configuration.
///
/// # Safety
/// The texts of `config` are null or end with a NUL byte.
unsafe fn builder(config: &tw_config) -> Result<RuntimeBuilder, Failure> {
    let mut builder = RuntimeBuilder::new();
    // SAFETY: by the caller's contract.
    let [iokernel, name, ip] =
        unsafe { [text("iokernel", config.iokernel)?, text("name", config.name)?, text("ip", config.ip)?] };
    if let Some(socket) = iokernel {
        builder = builder.iokernel(socket);
    }
    if let Some(name) = name {
        builder = builder.name(name);
    }
    if let Some(ip) = ip {
        let address = ip.parse();
        let address =
            address.map_err(|_| Failure::invalid(format!("tw_config.ip is {ip:?}, no IPv4 address")))?;
        builder = builder.ip(address);
    }
    if config.kthreads > 0 {
        builder = builder.kthreads(small("kthreads", config.kthreads)?);
    }
    if config.guaranteed > 0 {
        builder = builder.guaranteed(small("guaranteed", config.guaranteed)?);
    }
    builder = match config.allocation_class {
        TW_CLASS_UNSET => builder,
        TW_CLASS_LATENCY_CRITICAL => builder.class(ProgramClass::LatencyCritical),
        TW_CLASS_BEST_EFFORT => builder.class(ProgramClass::BestEffort),
        other => {
            return Err(Failure::invalid(format!("tw_config.allocation_class is {other}: use TW_CLASS_...")));
        }
    };
    numbers(config, builder)
}

/// Adds sizes, times and flags.
fn numbers(config: &tw_config, mut builder: RuntimeBuilder) -> Result<RuntimeBuilder, Failure> {
    if config.flags & !(TW_FOREIGN_MALLOC | TW_NO_PACKET_STEALING) != 0 || config.reserved != 0 {
        return Err(Failure::invalid(format!("tw_config.flags is {:#x}: unknown flags", config.flags)));
    }
    if config.flags & TW_NO_PACKET_STEALING != 0 {
        builder = builder.packet_stealing(false);
    }
    if config.stack_size > 0 {
        builder = builder.stack_size(config.stack_size);
    }
    if config.quantum_ns > 0 {
        builder = builder.quantum(time(config.quantum_ns));
    }
    if config.idle_timeout_ns > 0 {
        builder = builder.idle_timeout(time(config.idle_timeout_ns));
    }
    if config.stall_timeout_ns > 0 {
        builder = builder.stall_timeout(time(config.stall_timeout_ns));
    }
    if config.blocking_threads > 0 {
        builder = builder.blocking_threads(small("blocking_threads", config.blocking_threads)?);
    }
    if config.tcp_connections > 0 {
        builder = builder.tcp_connections(config.tcp_connections);
    }
    if config.ring_bytes > 0 {
        builder = builder.ring_bytes(config.ring_bytes);
    }
    Ok(builder)
}

/// Starts the runtime and runs `main`.
fn start<T: Send + 'static>(
    config: &tw_config,
    main: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    // SAFETY: C's texts, which end with a NUL byte by the documentation of the fields.
    let builder = unsafe { builder(config) }?;
    if config.flags & TW_FOREIGN_MALLOC == 0 && !memory::is_guarded() {
        return Err(Failure(
            libc::ENOTSUP,
            "malloc of this program is not Tailwater's, so a thread that is preempted in it would stop all \
             others: link libtailwater-malloc before libtailwater (`pkg-config --libs tailwater` does), or set \
             TW_FOREIGN_MALLOC in tw_config.flags and see there what it demands"
                .to_owned(),
        ));
    }
    let run = move || {
        RUNNING.store(true, Ordering::Relaxed);
        main()
    };
    find_descriptions();
    Ok(builder.run(run)?)
}

/// Writes the reason of a failure to where the configuration says.
///
/// # Safety
/// `config.error` is null or has `config.error_size` bytes.
unsafe fn report(config: &tw_config, reason: &str) {
    if config.error.is_null() || config.error_size == 0 {
        eprintln!("tailwater: {reason}");
        return;
    }
    let len = reason.len().min(config.error_size - 1);
    // SAFETY: by the caller's contract.
    unsafe {
        core::ptr::copy_nonoverlapping(reason.as_ptr(), config.error.cast::<u8>(), len);
        config.error.add(len).write(0);
    }
}

/// Starts the runtime of this process, and runs `main(argument)` as its first user thread. Returns
/// when `main` has returned; other user threads then end with the process. Called on an ordinary
/// thread, which waits in the kernel.
///
/// `config` may be NULL: all settings are then the environment's. A process has one runtime.
///
/// Returns 0, or a negative error number: `-EINVAL` for a setting, `-EBUSY` if there was a runtime
/// before, `-ENOTSUP` if the machine or the program is not suitable, `-ECONNREFUSED` or another one
/// if the IOKernel is not reached or refuses. The reason in words goes to `config->error`, or to
/// standard error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_run(
    config: *const tw_config,
    main: Option<unsafe extern "C" fn(argument: *mut c_void)>,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: by C's contract.
    let (config, checked) = unsafe { read(config) };
    let result = checked.and_then(|()| {
        let main = main.ok_or_else(|| Failure::invalid("the main function is NULL"))?;
        let call = Call::procedure(main, argument);
        start(&config, move || _ = call.make())
    });
    match result {
        Ok(()) => 0,
        Err(Failure(number, reason)) => {
            // SAFETY: by the documentation of the fields.
            unsafe { report(&config, &reason) };
            -number
        }
    }
}

/// Starts the runtime as the environment (`TAILWATER_*`) configures it, runs `program(argc, argv)`
/// as its first user thread, and returns its result: the exit status. A program's `main` is
/// `return tw_main(argc, argv, program);`. If the runtime cannot start, writes the reason to
/// standard error and returns 1. Called on an ordinary thread, which waits in the kernel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_main(
    argc: c_int,
    argv: *mut *mut c_char,
    program: Option<unsafe extern "C" fn(argc: c_int, argv: *mut *mut c_char) -> c_int>,
) -> c_int {
    let Some(program) = program else {
        eprintln!("tailwater: the program's main function is NULL");
        return 1;
    };
    let (program, arguments) = (program as usize, border::Address(argv.cast()));
    let main = move || {
        let arguments = arguments;
        // SAFETY: 1. by the parameter's type. 2. C asked for this call.
        unsafe { border::call(program, [argc as usize, arguments.0 as usize, 0, 0]) as c_int }
    };
    // SAFETY: zeros are a valid tw_config.
    match start(&unsafe { core::mem::zeroed() }, main) {
        Ok(status) => status,
        Err(Failure(_, reason)) => {
            eprintln!("tailwater: {reason}");
            1
        }
    }
}

/// Returns the version of the library, such as "0.1.0". Never switches threads.
#[unsafe(no_mangle)]
pub extern "C" fn tw_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// `strerrordesc_np` of glibc 2.32 and later, once the runtime has started; null before, and with
/// an older glibc.
static DESCRIPTIONS: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Looks `strerrordesc_np` up. Called on an ordinary thread: `dlsym` takes a lock of the C library,
/// and a user thread that is preempted with it would stop all others that need it.
fn find_descriptions() {
    // SAFETY: a plain look-up.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"strerrordesc_np".as_ptr()) };
    DESCRIPTIONS.store(found, Ordering::Relaxed);
}

/// Returns the text of an error number, positive or negative, such as "Resource temporarily
/// unavailable". The text lives as long as the process. Never switches threads.
#[unsafe(no_mangle)]
pub extern "C" fn tw_strerror(error: c_int) -> *const c_char {
    let number = error.saturating_abs();
    let found = DESCRIPTIONS.load(Ordering::Relaxed);
    let text = if found.is_null() {
        description(number)
    } else {
        type Describe = unsafe extern "C" fn(c_int) -> *const c_char;
        // SAFETY: glibc's name has this type, and any number is allowed.
        unsafe { core::mem::transmute::<*mut c_void, Describe>(found)(number) }
    };
    if text.is_null() { c"Unknown error".as_ptr() } else { text }
}

/// As `strerrordesc_np`, but the text is in the language of the program's locale, which takes
/// locks.
fn description(number: c_int) -> *const c_char {
    unsafe extern "C" {
        // glibc's own, not POSIX's, which `libc::strerror_r` is: it returns a constant text, and
        // writes to the buffer only if it has none.
        fn strerror_r(number: c_int, buffer: *mut c_char, len: usize) -> *const c_char;
    }
    let mut unknown: [c_char; 64] = [0; 64];
    // SAFETY: any number is allowed; the buffer has that many bytes.
    let text = unsafe { strerror_r(number, unknown.as_mut_ptr(), unknown.len()) };
    if core::ptr::eq(text, unknown.as_ptr()) { core::ptr::null() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(error: c_int) -> &'static CStr {
        // SAFETY: the text lives as long as the process.
        unsafe { CStr::from_ptr(tw_strerror(error)) }
    }

    #[test]
    fn errors_have_the_same_texts_before_the_start_and_after_it() {
        let known = [0, libc::EPERM, libc::EAGAIN, -libc::EAGAIN, -libc::EHWPOISON];
        let all: Vec<_> = known.into_iter().chain([41, 100_000, c_int::MIN]).collect();
        let before: Vec<_> = all.iter().map(|&number| text(number)).collect();
        find_descriptions();
        let after: Vec<_> = all.iter().map(|&number| text(number)).collect();
        assert_eq!(before, after);
        assert_eq!(before[3], c"Resource temporarily unavailable");
        assert_eq!(before[5..], [c"Unknown error"; 3]);
    }
}
