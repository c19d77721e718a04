//! Network namespaces for tests: two machines' worth of network stack on one machine.
//!
//! Owns [`Namespace`], which has no name: it lives as long as somebody holds its descriptor or runs in it, and everything in
//! it (veth pairs, bridges, TAP devices, attached programs) goes with it, also when the test is killed. A thread is in one
//! namespace at a time; processes and sockets that it starts belong to the one it is in.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::process::Command;
use std::sync::mpsc;

/// A network namespace. See the module documentation.
#[derive(Debug)]
pub struct Namespace {
    file: OwnedFd,
    /// A thread that lives in it, by which `ip link set netns` finds it; it ends when this is dropped.
    anchor: i32,
    _release: mpsc::Sender<()>,
}

impl Namespace {
    /// A fresh namespace with its loopback interface up.
    ///
    /// # Errors
    /// In words, without `CAP_SYS_ADMIN`: tests print them and skip.
    pub fn new() -> Result<Self, String> {
        let (tell, told) = mpsc::channel();
        let (release, wait) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            // SAFETY: a network namespace affects no memory; only this thread is moved.
            let made = unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
                .map_err(|e| format!("no network namespace without CAP_SYS_ADMIN ({e})"))
                .and_then(|()| own_namespace().map_err(|e| e.to_string()));
            let anchor = rustix::thread::gettid().as_raw_nonzero().get();
            // Fails when the test has ended meanwhile.
            let _ = tell.send(made.map(|file| (file, anchor)));
            // Nothing is ever sent: ends when the sender is dropped.
            let _ = wait.recv();
        });
        let (file, anchor) = told.recv().map_err(|e| e.to_string())??;
        let namespace = Self { file, anchor, _release: release };
        namespace.ip(&["link", "set", "lo", "up"]);
        Ok(namespace)
    }

    /// Moves the calling thread into it.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub fn enter(&self) {
        move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))
            .expect("the namespace exists and we may enter it");
    }

    /// Runs `run` in it; the calling thread is back where it was afterwards.
    ///
    /// # Panics
    /// If `run` does, or the kernel refuses.
    pub fn inside<T>(&self, run: impl FnOnce() -> T) -> T {
        /// Goes back when dropped.
        struct Back(OwnedFd);
        impl Drop for Back {
            fn drop(&mut self) {
                // Fails only if the place we came from is forbidden by now; then the test fails for it.
                let _ = move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network));
            }
        }
        let _back = Back(own_namespace().expect("the calling thread is in a namespace"));
        self.enter();
        run()
    }

    /// Runs `ip` in it with these words.
    ///
    /// # Panics
    /// If it fails, with what it says.
    #[track_caller]
    pub fn ip(&self, words: &[&str]) {
        self.run("ip", words);
    }

    /// Runs a program in it; its standard output.
    ///
    /// # Panics
    /// If it fails, with what it says.
    #[track_caller]
    pub fn run(&self, program: &str, words: &[&str]) -> String {
        let output = self.inside(|| Command::new(program).args(words).output());
        let output = output.unwrap_or_else(|e| panic!("{program}: {e}"));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{program} {words:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Joins this namespace and another by a veth pair, whose ends are up and have `queues` queues in each direction: `here` in
    /// this one, `there` in the other.
    ///
    /// # Panics
    /// If `ip` fails.
    pub fn join(&self, here: &str, other: &Self, there: &str, queues: usize) {
        let (anchor, queues) = (other.anchor.to_string(), queues.to_string());
        let queues = ["numrxqueues", &queues, "numtxqueues", &queues];
        let (near, far) = (["link", "add", here], ["type", "veth", "peer", "name", there, "netns", &anchor]);
        self.ip(&[&near[..], &queues, &far, &queues].concat());
        self.ip(&["link", "set", here, "up"]);
        other.ip(&["link", "set", there, "up"]);
    }
}

/// The namespace that the calling thread is in.
fn own_namespace() -> Result<OwnedFd, Errno> {
    open("/proc/thread-self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}
