//! The guest's first process: mounts, the program, the end.
//!
//! Owns everything in the guest. The root is an overlay: the host's files below, memory above, so
//! that a program may write anywhere and the host keeps its files. A failure is written to the
//! console and switches the guest off without a status, which the host reports.

use crate::errand::{self, Errand, FOLDER};
use crate::initramfs::MODULES;
use crate::kernel::run;
use anyhow::{Context, Result};
use rustix::mount::{MountFlags, mount, mount_move};
use rustix::system::{RebootCommand, finit_module, reboot};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

/// Where the initramfs mounts the host's files, the memory above them, and both.
pub const LOWER: &str = "/host";
pub const UPPER: &str = "/upper";
pub const ROOT: &str = "/root";
/// Flag of finit_module(2): the kernel decompresses the file.
const COMPRESSED: i32 = 4;
/// Bytes of one request for a file of the host.
const MESSAGE: u32 = 512 << 10;

/// Runs the errand and switches the guest off.
pub fn main() -> ! {
    if let Err(error) = start().and_then(|()| errand::write_status(serve()?)) {
        eprintln!("machine: {error:#}");
    }
    rustix::fs::sync();
    let _ = reboot(RebootCommand::PowerOff);
    // Without a power switch: the kernel panics when its first process ends, and QEMU ends.
    std::process::exit(1)
}

/// Loads the modules and moves into the root that the program sees.
fn start() -> Result<()> {
    attach("devtmpfs", "/dev", "devtmpfs", "")?;
    load_modules()?;
    let options = |tag: &str| {
        let writes = if tag == errand::TAG { "none" } else { "loose" };
        format!("trans=virtio,version=9p2000.L,msize={MESSAGE},cache={writes}")
    };
    attach(errand::ROOT_TAG, LOWER, "9p", &options(errand::ROOT_TAG))?;
    attach("tmpfs", UPPER, "tmpfs", "mode=755")?;
    for folder in ["/upper/files", "/upper/work"] {
        fs::create_dir(folder)?;
    }
    let layers = format!("lowerdir={LOWER},upperdir=/upper/files,workdir=/upper/work,xino=off");
    attach("overlay", ROOT, "overlay", &layers)?;
    mount_move("/dev", "/root/dev").context("/dev")?;
    std::env::set_current_dir(ROOT)?;
    mount_move(".", "/").context("the root")?;
    rustix::process::chroot(".").context("the root")?;
    for (kind, path, data) in [
        ("proc", "/proc", ""),
        ("sysfs", "/sys", ""),
        ("devpts", "/dev/pts", ""),
        ("tmpfs", "/dev/shm", "mode=1777"),
        ("tmpfs", "/run", "mode=755"),
        ("cgroup2", "/sys/fs/cgroup", ""),
        ("bpf", "/sys/fs/bpf", ""),
        ("debugfs", "/sys/kernel/debug", ""),
        ("tracefs", "/sys/kernel/tracing", ""),
    ] {
        // Those of the kernel's own tree exist already and can not be made.
        let _ = fs::create_dir(path);
        attach(kind, path, kind, data)?;
    }
    // As a service manager has them.
    fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+cpu +cpuset +memory +pids")
        .context("controllers of control groups")?;
    fs::create_dir(FOLDER)?;
    attach(errand::TAG, FOLDER, "9p", &options(errand::TAG))
}

fn attach(source: &str, path: &str, kind: &str, data: &str) -> Result<()> {
    let data = CString::new(data)?;
    mount(source, path, kind, MountFlags::empty(), data.as_c_str())
        .with_context(|| format!("{kind} at {path}"))
}

fn load_modules() -> Result<()> {
    let mut modules: Vec<_> = fs::read_dir(MODULES)?.flatten().map(|entry| entry.path()).collect();
    modules.sort();
    for module in modules {
        let flags = if module.extension().is_some_and(|end| end == "ko") { 0 } else { COMPRESSED };
        finit_module(File::open(&module)?, c"", flags).with_context(|| module.display().to_string())?;
    }
    Ok(())
}

/// Runs the program on the output console; returns its exit status as a shell has it.
fn serve() -> Result<u8> {
    let errand = Errand::read()?;
    rustix::system::sethostname(b"machine")?;
    run(Command::new("ip").args(["link", "set", "lo", "up"]))?;
    let output = output()?;
    let (program, arguments) = errand.command.split_first().context("no program")?;
    errand::write_booted()?;
    let child = Command::new(program)
        .args(arguments)
        .current_dir(&errand.folder)
        .env_clear()
        .envs(&errand.variables)
        .env("MACHINE_OUT", Path::new(FOLDER).join("out"))
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .status()
        .with_context(|| format!("{program} cannot be started"))?;
    Ok(code(child))
}

/// Opens the console that the host reads, without translation of line ends.
fn output() -> Result<File> {
    let console = OpenOptions::new().read(true).write(true).open("/dev/hvc0").context("/dev/hvc0")?;
    let mut settings = tcgetattr(&console)?;
    settings.make_raw();
    tcsetattr(&console, OptionalActions::Now, &settings)?;
    Ok(console)
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(u8::MAX)
}
