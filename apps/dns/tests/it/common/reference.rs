//! Widely used name servers, on loopback addresses.
//!
//! Owns their configurations. Each runs in a folder of its own in the foreground and ends with its
//! [`Reference`].

use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tailwater_testkit::{PATIENCE, Program, is_installed, loopback_address};

/// A running server.
pub struct Reference {
    /// Its name.
    pub name: &'static str,
    /// Where it serves.
    pub address: SocketAddr,
    log: PathBuf,
    _program: Program,
}

/// Name, Debian package, arguments before the configuration, and what writes that.
type Kind = (&'static str, &'static str, &'static [&'static str], fn(&Path, SocketAddr, &[String]) -> String);

const KINDS: [Kind; 3] = [
    ("nsd", "nsd", &["-d", "-c"], nsd),
    ("knotd", "knot", &["-c"], knot),
    ("named", "bind9", &["-g", "-n", "1", "-c"], bind),
];

/// Starts the servers that are installed, with zones whose files are in `folder`: `example.` in
/// `example.zone`. Prints which are not.
pub fn start_all(folder: &Path, zones: &[String]) -> Vec<Reference> {
    let installed = KINDS.iter().filter(|(name, package, ..)| is_installed(name, package));
    installed.map(|kind| start(kind, folder, zones)).collect()
}

fn start(&(name, _, arguments, config): &Kind, folder: &Path, zones: &[String]) -> Reference {
    let (own, address) = (folder.join(name), address_for(name));
    std::fs::create_dir(&own).unwrap();
    let (file, log) = (own.join("config"), own.join("log"));
    std::fs::write(&file, config(&own, address, zones)).unwrap();
    let output = std::fs::File::create(&log).unwrap();
    let path = format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new(name);
    command.env("PATH", path).args(arguments).arg(&file).stdin(Stdio::null());
    let program = Program::spawn(command.stdout(output.try_clone().unwrap()).stderr(output));
    Reference { name, address, log, _program: program }
}

/// Returns an address of this process alone. BIND listens only at addresses that an interface has.
fn address_for(name: &str) -> SocketAddr {
    if name == "named" { localhost_address() } else { loopback_address() }
}

/// Returns an address of 127.0.0.1 that is free for TCP and UDP. The search begins at a port made
/// of the process id, below the ephemeral ports of the kernel (`ip_local_port_range`: 32,768 and
/// up), so that no other program gets it before the server binds it.
fn localhost_address() -> SocketAddr {
    const FIRST_PORT: u16 = 10_000;
    const PORTS: u16 = 10_000;
    let first = (std::process::id() % u32::from(PORTS)) as u16;
    let mut addresses = (0..PORTS).map(|number| {
        let port = FIRST_PORT + (first + number) % PORTS;
        SocketAddr::from((Ipv4Addr::LOCALHOST, port))
    });
    let is_free =
        |address: &SocketAddr| TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok();
    addresses.find(is_free).expect("a port is free")
}

impl Reference {
    /// Waits until a query is answered without an error: a server refuses or fails until the zone
    /// is loaded.
    ///
    /// # Panics
    /// If that does not happen.
    pub fn wait_for(&self, query: &[u8]) {
        let began = Instant::now();
        while exchange(self.address, query).is_none_or(|answer| answer[3] & 15 != 0) {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            assert!(began.elapsed() < PATIENCE, "{} does not serve:\n{log}", self.name);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Number of queries sent together.
const AT_ONCE: usize = 50;

/// A connection to a server that is made again whenever it ends.
pub struct Client {
    address: SocketAddr,
    stream: Option<TcpStream>,
}

impl Client {
    /// Returns a client without a connection.
    pub fn new(address: SocketAddr) -> Self {
        Self { address, stream: None }
    }

    /// Returns the answers to queries, some of which are sent together.
    ///
    /// # Panics
    /// If there are none for too long.
    pub fn ask_all(&mut self, queries: &[Vec<u8>]) -> Vec<Vec<u8>> {
        queries.chunks(AT_ONCE).flat_map(|queries| self.ask_some(queries)).collect()
    }

    fn ask_some(&mut self, queries: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let began = Instant::now();
        loop {
            match self.try_ask(queries) {
                Some(answers) => return answers,
                None => self.stream = None,
            }
            assert!(began.elapsed() < PATIENCE, "{} does not answer", self.address);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn try_ask(&mut self, queries: &[Vec<u8>]) -> Option<Vec<Vec<u8>>> {
        if self.stream.is_none() {
            let stream = TcpStream::connect(self.address).ok()?;
            stream.set_nodelay(true).ok()?;
            stream.set_read_timeout(Some(PATIENCE / 4)).ok()?;
            self.stream = Some(stream);
        }
        let stream = self.stream.as_mut()?;
        let mut sent = Vec::new();
        for (number, query) in queries.iter().enumerate() {
            sent.extend(u16::try_from(query.len()).expect("a message").to_be_bytes());
            // The identifier says which query an answer belongs to (RFC 7766, section 7).
            sent.extend((number as u16).to_be_bytes());
            sent.extend(&query[2..]);
        }
        stream.write_all(&sent).ok()?;
        let mut answers = vec![Vec::new(); queries.len()];
        for _ in queries {
            let mut len = [0; 2];
            stream.read_exact(&mut len).ok()?;
            let mut answer = vec![0; usize::from(u16::from_be_bytes(len))];
            stream.read_exact(&mut answer).ok()?;
            let number = u16::from_be_bytes(*answer.first_chunk()?);
            *answers.get_mut(usize::from(number))? = answer;
        }
        Some(answers)
    }
}

fn exchange(address: SocketAddr, query: &[u8]) -> Option<Vec<u8>> {
    Client::new(address).try_ask(&[query.to_vec()])?.pop()
}

fn nsd(own: &Path, address: SocketAddr, zones: &[String]) -> String {
    let (folder, ip, port) = (own.display(), address.ip(), address.port());
    let mut config = format!(
        "server:\n  ip-address: {ip}@{port}\n  username: \"\"\n  chroot: \"\"\n  zonesdir: \"{folder}/..\"\n  \
         database: \"\"\n  xfrdir: \"{folder}\"\n  pidfile: \"{folder}/pid\"\n  xfrdfile: \"{folder}/xfrd\"\n  zonelistfile: \
         \"{folder}/zones\"\n  server-count: 1\n  do-ip6: no\nremote-control:\n  control-enable: no\n"
    );
    for zone in zones {
        let _ = write!(config, "zone:\n  name: {zone}\n  zonefile: {zone}zone\n");
    }
    config
}

fn knot(own: &Path, address: SocketAddr, zones: &[String]) -> String {
    let (folder, ip, port) = (own.display(), address.ip(), address.port());
    let mut config = format!(
        "server:\n  rundir: {folder}\n  listen: {ip}@{port}\n  udp-workers: 1\n  tcp-workers: 1\n  \
         background-workers: 1\ndatabase:\n  storage: {folder}\nzone:\n"
    );
    for zone in zones {
        let _ = write!(config, "- domain: {zone}\n  storage: {folder}/..\n  file: {zone}zone\n");
    }
    config
}

fn bind(own: &Path, address: SocketAddr, zones: &[String]) -> String {
    let (folder, ip, port) = (own.display(), address.ip(), address.port());
    let mut config = format!(
        "options {{ directory \"{folder}\"; listen-on port {port} {{ {ip}; }}; listen-on-v6 {{ none; }}; \
         pid-file \"{folder}/pid\"; session-keyfile \"{folder}/key\"; recursion no; dnssec-validation no; \
         check-names primary ignore; check-mx ignore; check-integrity no; notify no; }};\ncontrols {{ }};\n"
    );
    for zone in zones {
        let _ = writeln!(config, "zone \"{zone}\" {{ type primary; file \"{folder}/../{zone}zone\"; }};");
    }
    config
}
