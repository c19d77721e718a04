//! Attackers that are processes of a user without rights, who may register best-effort programs: an
//! IOKernel of root loses neither memory nor time to them.

use rustix::fs::{FallocateFlags, SealFlags, fallocate, fcntl_add_seals, fstat};
use rustix::io::Errno;
use std::fs;
use std::io::{Read, Write, stdin, stdout};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use tailwater_iokernel_testing::attack::{Attack, Event};
use tailwater_iokernel_testing::roles::Echo;
use tailwater_iokernel_testing::{RawRuntime, RawSpec, stats};
use tailwater_shm::control::Register;
use tailwater_shm::memory::Mapping;
use tailwater_testkit::{Program, has_two_cpus, until};
use tailwater_tests::attack::{Offer, Target, as_user};

/// A user without rights but for the grant of [`target`].
const MALLORY: u32 = 65_533;
/// What the attacker is to do, and for which IOKernel.
const DEED: &str = "TAILWATER_TEST_DEED";
/// Before each line of an attacker that is not the test harness's.
const SAYS: &str = "attacker: ";

/// Starts an IOKernel at which [`MALLORY`] may register. `None` where this process cannot act as
/// another user, and then prints that the test is skipped.
fn target(folder: &Path) -> Option<Target> {
    if !has_two_cpus() {
        return None;
    }
    as_user(MALLORY, || ())?;
    let file = folder.join("tailwater.toml");
    fs::write(&file, format!("neighbour-share = 0\n[[grant]]\nusers = {MALLORY}\nprograms = 200\n")).unwrap();
    Some(Target::start_command_with(&["--config", file.to_str().unwrap()]))
}

/// Starts an attacker: a copy of this test program that runs only [`attacker`].
fn attack(target: &Target, deed: &str) -> Program {
    // Not by path: folders above it may be closed to the user.
    let mut command = Command::new("/proc/self/exe");
    command.args(["users::attacker", "--exact", "--nocapture", "--test-threads=1"]);
    command.env(DEED, format!("{} {deed}", target.socket)).uid(MALLORY).gid(MALLORY);
    Program::start(&mut command)
}

/// Returns the next line of an attacker.
#[track_caller]
fn said(attacker: &mut Program) -> String {
    let line = attacker.line_with(SAYS);
    line.split_once(SAYS).map(|(_, said)| said.to_owned()).unwrap_or(line)
}

fn say(words: &str) {
    // After the harness's own words on the same line.
    writeln!(stdout(), "\n{SAYS}{words}").and_then(|()| stdout().flush()).expect("the test reads it");
}

/// Waits until the test closes this process's input.
fn stay() {
    let _ = stdin().read_to_end(&mut Vec::new());
}

/// Not a test: the body of the attackers.
#[test]
fn attacker() {
    let Ok(order) = std::env::var(DEED) else { return };
    let words: Vec<&str> = order.split(' ').collect();
    let (socket, deed) = (words[0], words[1]);
    match deed {
        "leave-memory-unmade" => leave_memory_unmade(socket),
        "make-memory" => make_memory(socket),
        "punch" => punch(socket),
        "seal" => seal(socket),
        "shrink-packets" => shrink_packets(socket),
        other => panic!("{other}"),
    }
}

/// Two large rings.
fn large(name: &str) -> Register {
    Register { ring_bytes: 4 << 20, ..RawSpec::new(name).best_effort().register }
}

/// Registers with memory that has not been touched, and keeps it after the answer.
fn leave_memory_unmade(socket: &str) {
    let mut kept = Vec::new();
    for number in 0..8 {
        let offer = Offer::ask(socket, &large(&format!("sparse-{number}"))).expect("a place");
        kept.push(offer.files[0].try_clone().expect("a descriptor"));
        say(&offer.take().map(drop).expect_err("memory was made for it"));
    }
    stay();
}

fn make_memory(socket: &str) {
    let offer = Offer::ask(socket, &large("full")).expect("a place");
    drop(offer.map());
    let intruder = offer.take().expect("it is registered");
    say(&fstat(&intruder.files[0]).expect("a file").st_size.to_string());
    stay();
}

/// Takes pages out of its region while it registers, and once it is registered, and maps it once
/// more.
fn punch(socket: &str) {
    let punch = |file: &OwnedFd| {
        let len = fstat(file).expect("a file").st_size as u64;
        fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, len)
    };
    for number in 0..3 {
        let offer = Offer::ask(socket, &large(&format!("hasty-{number}"))).expect("a place");
        let (file, _mapping) = (offer.files[0].try_clone().expect("a descriptor"), offer.map());
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let punching = scope.spawn(|| {
                while !done.load(Ordering::Relaxed) && punch(&file).is_ok() {
                    std::hint::spin_loop();
                }
            });
            let answer = offer.take().map(|_| "registered".to_owned());
            done.store(true, Ordering::Relaxed);
            punching.join().expect("it does not panic");
            say(&answer.unwrap_or_else(|why| why));
        });
    }
    let offer = Offer::ask(socket, &large("puncher")).expect("a place");
    let _mapping = offer.map();
    let intruder = offer.take().expect("it is registered");
    let file = &intruder.files[0];
    for _ in 0..1_000 {
        assert_eq!(punch(file), Err(Errno::PERM));
    }
    assert!(Mapping::new(file, "region").is_err(), "it was mapped once more");
    say("pages stay");
    stay();
}

/// Seals its memory before the IOKernel does.
fn seal(socket: &str) {
    let offer = Offer::ask(socket, &large("sealer")).expect("a place");
    drop(offer.map());
    fcntl_add_seals(&offer.files[0], SealFlags::SEAL).expect("it may");
    say(&offer.take().map(drop).expect_err("it is registered"));
}

/// Tells a service without end that its packets are too large for a router.
fn shrink_packets(socket: &str) {
    let report = |event| {
        if event == Event::UnderWay {
            say("under way");
        }
    };
    Attack::FalseErrors.run(socket, &AtomicBool::new(false), report).expect("a place");
}

/// A control group with an account of memory; removed when dropped.
struct MemoryGroup {
    folder: PathBuf,
    account: PathBuf,
}

impl MemoryGroup {
    /// Makes one; returns `None` where that is not possible, and then prints that the test is
    /// skipped.
    fn new() -> Option<Self> {
        let make = || -> std::io::Result<Self> {
            // The two versions of control groups (cgroups(7)).
            let kinds =
                [("/sys/fs/cgroup/memory", "memory.usage_in_bytes"), ("/sys/fs/cgroup", "memory.current")];
            for (parent, account) in kinds {
                let folder = Path::new(parent).join(format!("tailwater-memory-{}", std::process::id()));
                if !Path::new(parent).join("cgroup.procs").exists() || fs::create_dir(&folder).is_err() {
                    continue;
                }
                let group = Self { account: folder.join(account), folder };
                if group.account.exists() {
                    return Ok(group);
                }
            }
            Err(std::io::ErrorKind::NotFound.into())
        };
        make().inspect_err(|error| eprintln!("skipped: cannot make a memory control group ({error})")).ok()
    }

    fn admit(&self, pid: u32) -> std::io::Result<()> {
        fs::write(self.folder.join("cgroup.procs"), pid.to_string())
    }

    fn bytes(&self) -> i64 {
        fs::read_to_string(&self.account).unwrap().trim().parse().unwrap()
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Busy until the last process in it has gone.
        until("the control group can be removed", || {
            let removed = fs::remove_dir(&self.folder);
            removed.err().is_none_or(|error| error.kind() == std::io::ErrorKind::NotFound)
        });
    }
}

#[test]
fn memory_that_a_program_has_not_made_is_not_made_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let Some(target) = target(folder.path()) else { return };
    // Shared memory that is mapped by the IOKernel (proc(5)).
    let mapped = || {
        let status = fs::read_to_string(format!("/proc/{}/status", target.program.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssShmem:")).expect("its memory");
        line.trim().trim_end_matches(" kB").parse::<i64>().expect("a number") << 10
    };
    let before = mapped();
    let mut attacker = attack(&target, "leave-memory-unmade");
    for _ in 0..8 {
        let why = said(&mut attacker);
        assert!(why.contains("MAP_POPULATE"), "{why}");
    }
    // Each has 8 MiB.
    assert!(mapped() - before < 4 << 20, "{} bytes more", mapped() - before);
    drop(target.admits("newcomer"));
}

#[test]
fn memory_of_a_program_is_charged_to_the_program() {
    let folder = tempfile::tempdir().unwrap();
    // Before the IOKernel, which has to end before the group is removed.
    let Some(group) = MemoryGroup::new() else { return };
    let Some(target) = target(folder.path()) else { return };
    if let Err(error) = group.admit(target.program.pid()) {
        return eprintln!("skipped: cannot move a process into a control group ({error})");
    }
    let before = group.bytes();
    let mut attacker = attack(&target, "make-memory");
    let len: i64 = said(&mut attacker).parse().unwrap();
    let charged = group.bytes() - before;
    assert!(charged < len / 2, "{charged} of {len} bytes are charged to the IOKernel");
    // Root's programs may leave it to the IOKernel.
    let offer = Offer::ask(&target.socket, &large("trusted")).unwrap();
    let intruder = offer.take().unwrap();
    assert!(group.bytes() - before > len / 2, "nothing is charged here");
    drop(intruder);
}

#[test]
fn a_program_that_takes_pages_out_of_its_region_cannot_once_it_is_registered() {
    let folder = tempfile::tempdir().unwrap();
    let Some(target) = target(folder.path()) else { return };
    let mut attacker = attack(&target, "punch");
    for _ in 0..3 {
        let how = said(&mut attacker);
        assert!(how == "registered" || how.contains("MAP_POPULATE"), "{how}");
    }
    assert_eq!(said(&mut attacker), "pages stay");
    drop(target.admits("newcomer"));
    target.stats();
}

#[test]
fn a_program_that_seals_its_memory_itself_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let Some(target) = target(folder.path()) else { return };
    let why = said(&mut attack(&target, "seal"));
    assert!(why.contains("sealed its shared memory"), "{why}");
    drop(target.admits("newcomer"));
}

#[test]
fn what_a_program_says_of_a_path_that_needs_smaller_packets_reaches_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let Some(target) = target(folder.path()) else { return };
    let _service =
        RawRuntime::start(&target.socket, &RawSpec::new("service"), |_| Box::<Echo>::default()).unwrap();
    let mut attacker = attack(&target, "shrink-packets");
    assert_eq!(said(&mut attacker), "under way");
    until("its messages are refused", || target.stats()["switch"]["dropped_refused"].as_u64() > Some(100));
    let stats = target.stats();
    let runtimes = stats["runtimes"].as_array().unwrap();
    let own = runtimes.iter().find(|runtime| runtime["name"] == "service").unwrap();
    assert_eq!(own["counters"]["rx_frames"], 0, "{own}");
}

/// Returns the refusal of one registration or question too many; `ask` asks for one. Many threads
/// ask at once: on a busy machine one alone may not take more than its part of the control thread's
/// time.
fn one_too_many(ask: impl Fn() -> Result<(), String> + Sync) -> String {
    const ASKING: usize = 8;
    let refusal = Mutex::new(None);
    let said = || refusal.lock().unwrap().clone();
    std::thread::scope(|scope| {
        for _ in 0..ASKING {
            scope.spawn(|| {
                until("one registration too many", || {
                    // The place of one before may not be free yet.
                    let why =
                        ask().err().filter(|why| why.contains("too many") && why.contains("permitted in"));
                    let is_it = why.is_some();
                    if is_it {
                        *refusal.lock().unwrap() = why;
                    }
                    is_it || said().is_some()
                });
            });
        }
    });
    said().expect("one was refused")
}

#[test]
fn users_whom_a_grant_does_not_name_have_an_account_in_common() {
    let folder = tempfile::tempdir().unwrap();
    if !has_two_cpus() || as_user(MALLORY, || ()).is_none() {
        return;
    }
    let file = folder.path().join("tailwater.toml");
    let grants = format!("max-runtimes = 16\n[[grant]]\nusers = {MALLORY}\n[[grant]]\nusers = \"*\"\n");
    fs::write(&file, grants).unwrap();
    let target = Target::start_command_with(&["--config", file.to_str().unwrap()]);
    let ask = |number: u32| {
        let request = RawSpec::new(&format!("m-{number}")).best_effort().register;
        Offer::ask(&target.socket, &request).map(drop)
    };
    let users = AtomicU32::new(61_000);
    let why = one_too_many(|| {
        let uid = users.fetch_add(1, Ordering::Relaxed);
        as_user(uid, || ask(uid)).expect("as before")
    });
    assert!(why.contains("[[grant]] number 2") && why.contains("permitted in"), "{why}");
    // A user with a grant has an account of its own, and root none.
    until("the user of the first grant registers", || as_user(MALLORY, || ask(1)) == Some(Ok(())));
    until("root registers", || ask(2).is_ok());
}

#[test]
fn questions_of_ever_new_users_whom_a_grant_does_not_name_are_paid_for_together() {
    let folder = tempfile::tempdir().unwrap();
    if !has_two_cpus() || as_user(MALLORY, || ()).is_none() {
        return;
    }
    let file = folder.path().join("tailwater.toml");
    fs::write(&file, format!("[[grant]]\nusers = {MALLORY}\n[[grant]]\nusers = \"*\"\n")).unwrap();
    let target = Target::start_command_with(&["--config", file.to_str().unwrap()]);
    let ask = || stats(&target.socket).map(drop).map_err(|error| error.to_string());
    let users = AtomicU32::new(61_000);
    let why = one_too_many(|| as_user(users.fetch_add(1, Ordering::Relaxed), ask).expect("as before"));
    assert!(why.contains("[[grant]] number 2") && why.contains("questions"), "{why}");
    until("the user of the first grant is answered", || as_user(MALLORY, ask) == Some(Ok(())));
}

#[test]
fn registrations_without_end_are_refused_to_a_user_without_rights_and_to_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let Some(target) = target(folder.path()) else { return };
    let request = |number: u32| RawSpec::new(&format!("m-{number}")).best_effort().register;
    let ask_until_refused = || {
        let number = AtomicU32::new(0);
        let why = one_too_many(|| {
            let number = number.fetch_add(1, Ordering::Relaxed);
            Offer::ask(&target.socket, &request(number)).map(drop)
        });
        assert!(why.contains(&format!("user {MALLORY}")) && why.contains("permitted in"), "{why}");
    };
    as_user(MALLORY, ask_until_refused).unwrap();
    // Root may as often as it likes.
    for number in 0..50 {
        drop(Offer::ask(&target.socket, &request(number)).unwrap());
    }
    // It asks without a pause.
    until("the user is offered places again", || {
        as_user(MALLORY, || Offer::ask(&target.socket, &request(0)).is_ok()) == Some(true)
    });
}
