//! Network namespaces for tests: the network stacks of several machines on one.
//!
//! Owns [`Namespace`], which has no name: it lives as long as a descriptor of it is open or a
//! thread runs in it, and everything in it (veth pairs, bridges, TAP devices, attached programs)
//! ends with it, also if the test is killed. In an emulated machine tests may have cards in place
//! of a veth pair ([`CARDS`]), which the first namespace gets back. A thread is in one namespace at
//! a time; threads, processes and sockets that it makes belong to that namespace.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::process::Command;
use std::sync::mpsc;

/// The names of two interfaces with a cable, with a comma between them, in the network namespace of
/// the first process, in which tests run then: [`Namespace::join`] uses these in place of a veth
/// pair whose ends have the names.
pub const CARDS: &str = "TAILWATER_TEST_CARDS";

/// A network namespace. See the module documentation.
#[derive(Debug)]
pub struct Namespace {
    file: OwnedFd,
    /// A thread that runs in it, by which `ip link set netns` finds it; the thread ends on drop.
    anchor: i32,
    _release: mpsc::Sender<()>,
}

impl Namespace {
    /// Returns a new namespace with its loopback interface up.
    ///
    /// # Errors
    /// Without `CAP_SYS_ADMIN` or `ip`, with a message that says so: tests print it and skip.
    pub fn new() -> Result<Self, String> {
        let (tell, told) = mpsc::channel();
        let (release, wait) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            // SAFETY: a network namespace affects no memory; only this thread is moved.
            let made = unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
                .map_err(|e| format!("no network namespace without CAP_SYS_ADMIN ({e})"))
                .and_then(|()| own_namespace().map_err(|e| e.to_string()));
            let anchor = rustix::thread::gettid().as_raw_nonzero().get();
            // Fails if the test has ended meanwhile.
            let _ = tell.send(made.map(|file| (file, anchor)));
            // No message is ever sent: returns when the sender is dropped.
            let _ = wait.recv();
        });
        let (file, anchor) = told.recv().map_err(|e| e.to_string())??;
        let namespace = Self { file, anchor, _release: release };
        let up = namespace.inside(|| Command::new("ip").args(["link", "set", "lo", "up"]).status());
        match up {
            Ok(status) if status.success() => Ok(namespace),
            other => Err(format!("`ip link set lo up` fails (Debian: iproute2): {other:?}")),
        }
    }

    /// Returns two namespaces, [joined](Self::join) by a veth pair with ends of these names;
    /// `None`, with the reason printed, if namespaces cannot be made.
    ///
    /// # Panics
    /// If `ip` fails.
    pub fn pair([here, there]: [&str; 2], queues: usize) -> Option<[Self; 2]> {
        let made = Self::new().and_then(|near| Ok([near, Self::new()?]));
        let [near, far] = made.inspect_err(|why| eprintln!("skipped: {why}")).ok()?;
        near.join(here, &far, there, queues);
        Some([near, far])
    }

    /// Moves the calling thread into it.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub fn enter(&self) {
        move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))
            .expect("the namespace exists and we may enter it");
    }

    /// Runs `run` in it, and moves the calling thread back to its previous namespace.
    ///
    /// # Panics
    /// If `run` does, or the kernel refuses.
    pub fn inside<T>(&self, run: impl FnOnce() -> T) -> T {
        /// Returns to the previous namespace on drop.
        struct Back(OwnedFd);
        impl Drop for Back {
            fn drop(&mut self) {
                // Fails only if the previous namespace is no longer permitted; then the test fails
                // for that reason.
                let _ = move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network));
            }
        }
        let _back = Back(own_namespace().expect("the calling thread is in a namespace"));
        self.enter();
        run()
    }

    /// Runs `ip` with these arguments in it.
    ///
    /// # Panics
    /// If it fails, with its output.
    #[track_caller]
    pub fn ip(&self, words: &[&str]) {
        self.run("ip", words);
    }

    /// Runs a program in it; returns its standard output.
    ///
    /// # Panics
    /// If it fails, with its output.
    #[track_caller]
    pub fn run(&self, program: &str, words: &[&str]) -> String {
        let output = self.inside(|| Command::new(program).args(words).output());
        let output = output.unwrap_or_else(|e| panic!("{program}: {e}"));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{program} {words:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Moves an interface of another namespace into this one.
    ///
    /// # Panics
    /// If `ip` fails.
    #[track_caller]
    pub fn take(&self, from: &Self, interface: &str) {
        from.ip(&["link", "set", interface, "netns", &self.anchor.to_string()]);
    }

    /// Joins this namespace and another by a veth pair with the ends `here` in this one and `there`
    /// in the other, both up and with `queues` queues in each direction; or by the two [`CARDS`],
    /// which have as many queues as they have.
    ///
    /// # Panics
    /// If `ip` fails.
    pub fn join(&self, here: &str, other: &Self, there: &str, queues: usize) {
        if cards() == [here, there] {
            return [(self, here), (other, there)].into_iter().for_each(|(it, card)| it.take_card(card));
        }
        let (anchor, queues) = (other.anchor.to_string(), queues.to_string());
        let queues = ["numrxqueues", &queues, "numtxqueues", &queues];
        let (near, far) = (["link", "add", here], ["type", "veth", "peer", "name", there, "netns", &anchor]);
        self.ip(&[&near[..], &queues, &far, &queues].concat());
        self.ip(&["link", "set", here, "up"]);
        other.ip(&["link", "set", there, "up"]);
    }

    /// Moves a card into this namespace, in the state of a new one: with its own MAC address and
    /// MTU of Ethernet. Tests change nothing else of it.
    fn take_card(&self, card: &str) {
        let moved =
            Command::new("ip").args(["link", "set", card, "netns", &self.anchor.to_string()]).output();
        let moved = moved.unwrap_or_else(|e| panic!("ip: {e}"));
        assert!(moved.status.success(), "{card}: {}", String::from_utf8_lossy(&moved.stderr));
        let shown = self.run("ip", &["-d", "link", "show", card]);
        let mac = own_mac(&shown).unwrap_or_else(|| panic!("no MAC address of {card}: {shown}"));
        self.ip(&["link", "set", card, "address", mac, "mtu", "1500", "up"]);
    }
}

/// Returns the MAC address that a card was made with, of what `ip link show` writes.
fn own_mac(shown: &str) -> Option<&str> {
    let after = |word: &str| shown.split_whitespace().skip_while(|it| *it != word).nth(1);
    // Without it, the card still has that one.
    after("permaddr").or_else(|| after("link/ether"))
}

/// Returns the names of the [`CARDS`].
fn cards() -> Vec<String> {
    let names = std::env::var(CARDS).unwrap_or_default();
    names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

impl Drop for Namespace {
    /// Gives cards back: a socket that a test leaves open would keep them here.
    fn drop(&mut self) {
        for card in cards() {
            let ip = |words: &[&str]| Command::new("ip").args(["link", "set", &card]).args(words).output();
            // Most namespaces have none; a program may be left on it.
            self.inside(|| _ = ["xdp", "xdpgeneric"].map(|hook| ip(&[hook, "off"])));
            let back = self.inside(|| ip(&["netns", "1"]));
            let why =
                back.map_or_else(|e| e.to_string(), |it| String::from_utf8_lossy(&it.stderr).into_owned());
            if !why.is_empty() && !why.contains("Cannot find device") {
                eprintln!("{card} is not given back: {why}");
            }
        }
    }
}

/// Returns the namespace that the calling thread is in.
fn own_namespace() -> Result<OwnedFd, Errno> {
    open("/proc/thread-self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Runs `test` in a fresh network namespace, or prints why it is skipped.
pub fn in_namespace(test: impl FnOnce()) {
    match Namespace::new() {
        Ok(namespace) => namespace.inside(test),
        Err(why) => eprintln!("skipped: {why}"),
    }
}
