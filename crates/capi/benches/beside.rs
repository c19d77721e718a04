//! C beside Rust: the same loops through `libtailwater` and through the crate, in one run.
//!
//! `cargo bench -p tailwater-capi` builds the archive and a program of C, runs that with the
//! archive and with the shared library, and this program again as the one of Rust, in turns, each
//! on one kthread. It prints the median of each row, and the ratio of C to Rust.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use tailwater::net::{TcpListener, TcpStream, UdpSocket};
use tailwater::sync::Mutex;
use tailwater::thread;
// The allocator guard is that of the crate under test.
use tailwater_capi as _;
use tailwater_xtask::{build, c_compiler, install, run};

mod kernel;

/// As in `beside.c`.
const POLLS: u32 = 10_000_000;
const PATHS: u32 = 10_000;
const SPAWNS: u32 = 200_000;
const YIELDS: u32 = 500_000;
const LOCKS: u32 = 200_000;
const TRIPS: u32 = 50_000;
const BYTES: usize = 64;

/// Rounds of all programs.
const ROUNDS: usize = 9;
/// Set in the process that runs the loops of Rust.
const CHILD: &str = "TAILWATER_BESIDE_CHILD";

fn report(name: &str, begin: Instant, count: u32) {
    println!("{name} {:.1}", begin.elapsed().as_nanos() as f64 / f64::from(count));
}

fn two(name: &str, each: u32, function: fn()) {
    let begin = Instant::now();
    let threads = [thread::spawn(function), thread::spawn(function)];
    for thread in threads {
        thread.join().unwrap();
    }
    report(name, begin, 2 * each);
}

fn locks() {
    static LOCK: Mutex<()> = Mutex::new(());
    for _ in 0..LOCKS {
        let guard = LOCK.lock().unwrap();
        thread::yield_now();
        drop(guard);
    }
}

fn udp() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let client = UdpSocket::bind("0.0.0.0:0").unwrap();
    client.connect(server.local_addr().unwrap()).unwrap();
    thread::spawn(move || {
        let mut data = [0; BYTES];
        loop {
            let (len, from) = server.recv_from(&mut data).unwrap();
            server.send_to(&data[..len], from).unwrap();
        }
    });
    let (mut data, begin) = ([0; BYTES], Instant::now());
    for _ in 0..TRIPS {
        client.send(&data).unwrap();
        client.recv(&mut data).unwrap();
    }
    report("udp", begin, TRIPS);
}

fn tcp() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        let mut data = [0; BYTES];
        while let Ok(len @ 1..) = stream.read(&mut data) {
            stream.write_all(&data[..len]).unwrap();
        }
    });
    let mut client = TcpStream::connect(address).unwrap();
    client.set_nodelay(true).unwrap();
    let (mut data, begin) = ([0; BYTES], Instant::now());
    for _ in 0..TRIPS {
        client.write_all(&data).unwrap();
        client.read_exact(&mut data).unwrap();
    }
    report("tcp", begin, TRIPS);
}

fn price(name: &str, price: fn(u64, u32) -> f64) {
    let begin = Instant::now();
    assert!(black_box(price(88_172_645_463_325_252, PATHS)) > 0.0);
    report(name, begin, PATHS);
}

/// The loops of Rust.
fn loops() {
    let begin = Instant::now();
    for _ in 0..POLLS {
        tailwater::poll();
    }
    report("poll", begin, POLLS);
    price("kernel", kernel::swaption_price);
    price("kernel,polled", kernel::swaption_price_polled);
    let begin = Instant::now();
    for _ in 0..SPAWNS {
        // A thread of C has an argument and a result.
        let argument = black_box(0usize);
        thread::spawn(move || argument).join().unwrap();
    }
    report("spawn+join", begin, SPAWNS);
    two("yield", YIELDS, || (0..YIELDS).for_each(|_| thread::yield_now()));
    two("mutex", LOCKS, locks);
    udp();
    tcp();
}

/// Numbers of one program, by row.
type Rows = BTreeMap<String, Vec<f64>>;

fn measure(command: &mut Command, rows: &mut Rows) {
    let output = command.env("TAILWATER_KTHREADS", "1").output().expect("the program runs");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let (name, number) = line.split_once(' ').expect("a name and a number");
        rows.entry(name.to_owned()).or_default().push(number.parse().expect("a number"));
    }
}

fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Compiles the kernel of the example, without poll points and with those of the compiler.
fn kernels(prefix: &Path) -> [PathBuf; 2] {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/swaptions/kernel.c");
    let polled = &["-Dswaption_price=swaption_price_polled", "-fsanitize-coverage=trace-pc"][..];
    [("plain.o", &[][..]), ("polled.o", polled)].map(|(name, options)| {
        let object = prefix.join(name);
        let mut compiler = c_compiler();
        compiler.arg("-O2").args(options).arg("-c").arg(&source).arg("-o").arg(&object);
        run(&mut compiler).expect("the kernel is compiled");
        object
    })
}

/// Compiles the program of C, with the archive and with the shared library.
fn compile(prefix: &Path) -> [PathBuf; 2] {
    let crate_ = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = ["benches/beside.c", "examples/swaptions/poll.c"].map(|name| crate_.join(name));
    let objects = kernels(prefix);
    let lib = prefix.join("lib");
    let programs = ["beside-archive", "beside-shared"].map(|name| prefix.join(name));
    for (program, is_archive) in programs.iter().zip([true, false]) {
        let mut compiler = c_compiler();
        compiler
            .arg("-O2")
            .arg("-I")
            .arg(prefix.join("include"))
            .args(&sources)
            .args(&objects)
            .arg("-o")
            .arg(program);
        if is_archive {
            compiler.arg(lib.join("libtailwater.a")).args(["-lgcc_s", "-ldl"]);
        } else {
            compiler.arg("-L").arg(&lib).arg(format!("-Wl,-rpath,{}", lib.display()));
            compiler.args(["-Wl,--no-as-needed", "-ltailwater-malloc", "-ltailwater"]);
        }
        run(compiler.args(["-lpthread", "-lm"])).expect("the program of C is compiled");
    }
    programs
}

fn main() {
    if std::env::var_os(CHILD).is_some() {
        return tailwater::RuntimeBuilder::new().kthreads(1).run(loops).expect("the runtime starts");
    }
    // `cargo test --benches` passes no `--bench`: there is nothing to test in it.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    if c_compiler().arg("--version").output().is_err() {
        return println!("skipped: no C compiler (Debian: gcc)");
    }
    let prefix = tempfile::tempdir().expect("a temporary folder");
    install(&build().expect("the archive is built"), prefix.path()).expect("it is installed");
    let [archive, shared] = compile(prefix.path());
    let own = std::env::current_exe().expect("a path");
    let mut rows: [Rows; 3] = Default::default();
    for _ in 0..ROUNDS {
        measure(Command::new(&own).env(CHILD, "1"), &mut rows[0]);
        measure(&mut Command::new(&archive), &mut rows[1]);
        measure(&mut Command::new(&shared), &mut rows[2]);
    }
    println!("{:<14}{:>10}{:>12}{:>7}{:>12}{:>7}", "ns", "Rust", "C, archive", "", "C, shared", "");
    for (name, rust) in &rows[0] {
        let [rust, archive, shared] = [rust, &rows[1][name], &rows[2][name]].map(|row| median(row));
        let (a, s) = (archive / rust, shared / rust);
        println!("{name:<14}{rust:>10.1}{archive:>12.1}{a:>7.3}{shared:>12.1}{s:>7.3}");
    }
}
