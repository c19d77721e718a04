//! QEMU's command line, its process and its bound.
//!
//! QEMU emulates the processors unless KVM is asked for: emulation runs everywhere, and shows more
//! interleavings of processors. Some hosts that are virtual machines offer KVM and cannot boot a
//! guest with it. The guest sees the host's files through a share that QEMU does not write, and one
//! folder that both write. QEMU ends with the guest or at the limit, and is killed when this
//! process ends, also by a signal.
//!
//! QEMU's own cables carry one queue. Those of several are made of TAP devices and bridges, in a
//! network namespace that ends with QEMU.

use crate::errand;
use crate::topology::Topology;
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The program.
const QEMU: &str = "qemu-system-x86_64";
/// It, so that the kernel kills it when this process ends. A change of rights, as by unshare(1),
/// would undo that (prctl(2)): nothing is between the two.
const QEMU_OF_PARENT: [&str; 5] = ["setpriv", "--pdeathsig", "KILL", "--", QEMU];
/// Status of setpriv(1) and sh(1) if a program is not installed.
const NOT_FOUND: i32 = 127;
/// What to do if one of the programs is missing.
const NEEDS: &str = "apt install qemu-system-x86 kmod iproute2 util-linux";
/// Interval at which the limit is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// Length of the longest IP packet that a cable of several queues carries.
const CABLE_MTU: u32 = 9_000;
/// Number of lines of the guest's console that an error shows.
const SHOWN: usize = 30;

/// A network card of the guest, by QEMU's name of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Card {
    /// virtio-net: AF_XDP in the driver.
    Virtio,
    /// Intel 82574, driver e1000e: AF_XDP by copies.
    E1000e,
}

impl Card {
    fn model(self) -> &'static str {
        match self {
            Self::Virtio => "virtio-net-pci",
            Self::E1000e => "e1000e",
        }
    }

    /// Returns the driver's module.
    pub fn module(self) -> &'static str {
        match self {
            Self::Virtio => "virtio_net",
            Self::E1000e => "e1000e",
        }
    }
}

/// What the guest is made of.
#[derive(Debug)]
pub struct Machine<'a> {
    pub topology: Topology,
    /// Memory in MiB, divided equally among the sockets.
    pub memory_mib: u32,
    /// Its cards: each pair is joined by a cable.
    pub cards: &'a [Card],
    /// Queues of each card.
    pub queues: u32,
    pub kernel: &'a Path,
    pub initramfs: &'a Path,
    /// The folder of the errand.
    pub folder: &'a Path,
    /// By KVM in place of emulation.
    pub kvm: bool,
    /// How long the guest may run.
    pub limit: Duration,
}

impl Machine<'_> {
    /// Runs the guest until it switches itself off; returns its recorded status.
    ///
    /// # Errors
    /// If QEMU cannot be started, the guest fails, or the limit has passed.
    pub fn run(&self) -> Result<u8> {
        let mut command = self.program();
        command.args(self.arguments()).stdin(Stdio::null());
        let program = command.get_program().to_string_lossy().into_owned();
        let mut qemu =
            Running(command.spawn().with_context(|| format!("{program} cannot be started; {NEEDS}"))?);
        let status = qemu.wait(self.folder, self.limit)?;
        if status.code() == Some(NOT_FOUND) {
            bail!("{QEMU} cannot be started; {NEEDS}");
        }
        errand::status(self.folder).with_context(|| {
            let console = fs::read(self.console()).unwrap_or_default();
            let console = String::from_utf8_lossy(&console).into_owned();
            let lines: Vec<_> = console.lines().collect();
            let last = lines[lines.len().saturating_sub(SHOWN)..].join("\n");
            format!("the guest recorded no status (QEMU: {status}); the end of its console:\n{last}")
        })
    }

    fn console(&self) -> std::path::PathBuf {
        self.folder.join("console")
    }

    fn arguments(&self) -> Vec<OsString> {
        let Topology { sockets, cores, threads } = self.topology;
        let mut words: Vec<OsString> = Vec::new();
        let mut add = |text: String| words.push(text.into());
        for word in ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"] {
            add(word.to_owned());
        }
        for (option, value) in [
            ("-machine", "q35".to_owned()),
            ("-accel", if self.kvm { "kvm" } else { "tcg,thread=multi" }.to_owned()),
            ("-cpu", cpu(self.kvm).to_owned()),
            ("-smp", format!("{},sockets={sockets},cores={cores},threads={threads}", self.topology.cpus())),
            ("-m", format!("{}M", self.memory_mib)),
            ("-kernel", self.kernel.display().to_string()),
            ("-initrd", self.initramfs.display().to_string()),
            ("-append", "console=ttyS0 panic=-1 quiet mitigations=off".to_owned()),
            ("-serial", format!("file:{}", self.console().display())),
            // What the program prints.
            ("-chardev", "stdio,id=output,signal=off".to_owned()),
            ("-device", "virtio-serial-pci".to_owned()),
            ("-device", "virtconsole,chardev=output".to_owned()),
        ] {
            add(option.to_owned());
            add(value);
        }
        let share = |path: &str, tag: &str, how: &str| {
            format!("local,path={path},mount_tag={tag},security_model=none,multidevs=remap{how}")
        };
        let folder = self.folder.display().to_string();
        for share in [share("/", errand::ROOT_TAG, ",readonly=on"), share(&folder, errand::TAG, "")] {
            add("-virtfs".to_owned());
            add(share);
        }
        for word in self.nodes().chain(self.network()) {
            add(word);
        }
        words
    }

    /// Returns the options that make each socket a NUMA node.
    fn nodes(&self) -> impl Iterator<Item = String> {
        let each = self.memory_mib / self.topology.sockets;
        let topology = self.topology;
        (0..topology.sockets).flat_map(move |socket| {
            let cpus = topology.cpus_of(socket);
            [
                "-object".to_owned(),
                format!("memory-backend-ram,id=memory{socket},size={each}M"),
                "-numa".to_owned(),
                format!("node,nodeid={socket},memdev=memory{socket},cpus={}-{}", cpus.start, cpus.end - 1),
            ]
        })
    }

    /// Returns QEMU, in a namespace with its cables if cards have several queues.
    fn program(&self) -> Command {
        if self.queues == 1 || self.cards.is_empty() {
            let mut command = Command::new(QEMU_OF_PARENT[0]);
            command.args(&QEMU_OF_PARENT[1..]);
            return command;
        }
        let mut command = Command::new("unshare");
        // Root of a namespace of users may make them, too, where users may make such a namespace.
        if !rustix::process::geteuid().is_root() {
            command.arg("--map-root-user");
        }
        command.args(["--net", "sh", "-ec", &format!("{}exec \"$0\" \"$@\"", self.cables())]);
        command.args(QEMU_OF_PARENT);
        command
    }

    /// Returns the commands that make the cables: bridges that remember no address, and so pass on
    /// every frame, whoever has which MAC address.
    fn cables(&self) -> String {
        let mut commands = String::new();
        for (cable, cards) in self.cards.chunks(2).enumerate() {
            commands += &format!(
                "ip link add cable{cable} mtu {CABLE_MTU} type bridge ageing_time 0 mcast_snooping 0\n\
                 ip link set cable{cable} addrgenmode none up\n"
            );
            for number in (2 * cable..).take(cards.len()) {
                commands += &format!(
                    "ip tuntap add card{number} mode tap multi_queue\n\
                     ip link set card{number} mtu {CABLE_MTU} addrgenmode none master cable{cable} up\n"
                );
            }
        }
        commands
    }

    /// Returns the options for the cards.
    fn network(&self) -> impl Iterator<Item = String> {
        let queues = self.queues;
        self.cards.iter().enumerate().flat_map(move |(number, card)| {
            let (model, mac) = (card.model(), format!("52:54:00:00:00:{:02x}", number + 1));
            let (cable, more) = if queues == 1 {
                (format!("hubport,id=card{number},hubid={}", number / 2), String::new())
            } else {
                let device = format!("ifname=card{number},script=no,downscript=no,queues={queues}");
                // One interrupt for each direction of a queue, two for the rest.
                (format!("tap,id=card{number},{device}"), format!(",mq=on,vectors={}", 2 * queues + 2))
            };
            [
                "-netdev".to_owned(),
                cable,
                "-device".to_owned(),
                format!("{model},netdev=card{number},mac={mac}{more}"),
            ]
        })
    }
}

/// Returns the model of the processor: all features that there are. A guest sees hyperthreads of an
/// emulated AMD processor by a feature that QEMU does not emulate, so that is Intel's.
fn cpu(kvm: bool) -> &'static str {
    if !kvm {
        return "max,vendor=GenuineIntel,family=6,model=85,stepping=7";
    }
    let host = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    // Processors of AMD have no register of Intel's, which QEMU sets all the same.
    if host.contains("AuthenticAMD") { "max,topoext=on,arch-capabilities=off" } else { "max" }
}

/// A child that is killed with its owner.
struct Running(Child);

impl Running {
    /// Waits for the end, and prints once how long the guest took to start its program.
    fn wait(&mut self, folder: &Path, limit: Duration) -> Result<ExitStatus> {
        let (began, mut has_booted) = (Instant::now(), false);
        loop {
            if !has_booted && errand::has_booted(folder) {
                has_booted = true;
                eprintln!("machine: booted in {:.1} s", began.elapsed().as_secs_f64());
            }
            if let Some(status) = self.0.try_wait()? {
                return Ok(status);
            }
            if began.elapsed() > limit {
                bail!("the guest runs for longer than {} s: --limit-s allows more", limit.as_secs());
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already, or else has nothing to lose.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
