//! What the agent gives to batch pods, in containers of runc: control groups of the version that
//! the machine has, which end with the test. `.ci/full machine` runs it with version 2.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tailwater_node::cores::Look;
use tailwater_node::nri::adjust::{adjust, keep};
use tailwater_node::nri::api::{CREATED, Container, ContainerRequest, Cpu, Pod};
use tailwater_testkit::{cpu_numbers, installed, run, text, until};

/// Where Linux mounts control groups.
const ROOT: &str = "/sys/fs/cgroup";

fn has_idle() -> bool {
    Path::new(ROOT).join("cgroup.controllers").exists()
}

/// Returns the path of runc; if it can start no container here, prints why the test is skipped.
fn runc() -> Option<PathBuf> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: runc needs root");
        return None;
    }
    // A container without privileges has control groups read-only, or may mount nothing.
    let above = if has_idle() { PathBuf::from(ROOT) } else { Path::new(ROOT).join("cpuset") };
    let probe = above.join(format!("tailwater-node-probe-{}", std::process::id()));
    if let Err(error) = fs::create_dir(&probe).and_then(|()| fs::remove_dir(&probe)) {
        eprintln!("skipped: cannot make the control group {}: {error}", probe.display());
        return None;
    }
    let output = run(Command::new("unshare").args(["--mount", "true"]), b"");
    if !output.status.success() {
        eprintln!("skipped: no mount namespace: {}", text(&output.stderr));
        return None;
    }
    installed("runc", "runc")
}

/// A container of runc, deleted at the end.
struct Runc {
    program: PathBuf,
    folder: tempfile::TempDir,
    name: String,
    /// Limits of processor time, which a container runtime sets anew with each change.
    cpu: Value,
}

impl Runc {
    /// Starts one with these limits.
    fn start(program: PathBuf, cpu: Value, unified: &HashMap<String, String>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let name = format!("tailwater-node-{}", std::process::id());
        let root = folder.path().join("root");
        fs::create_dir(&root).expect("a folder");
        // In place of an image.
        let bound = ["/bin", "/lib", "/lib64", "/usr"].into_iter().filter(|path| Path::new(path).is_dir());
        let mounts = bound.map(
            |path| json!({ "destination": path, "source": path, "type": "bind", "options": ["rbind", "ro"] }),
        );
        let config = json!({
            "ociVersion": "1.0.2",
            "root": { "path": root },
            "mounts": mounts.chain([json!({ "destination": "/proc", "type": "proc", "source": "proc" })]).collect::<Vec<_>>(),
            "process": { "args": ["/bin/sleep", "1000"], "cwd": "/", "user": { "uid": 0, "gid": 0 } },
            "linux": {
                "namespaces": [{ "type": "mount" }, { "type": "pid" }],
                "cgroupsPath": format!("/{name}"),
                "resources": { "cpu": cpu, "unified": unified },
            },
        });
        fs::write(folder.path().join("config.json"), config.to_string()).expect("a configuration");
        let runc = Self { program, folder, name, cpu };
        let bundle = runc.folder.path().to_string_lossy().into_owned();
        let log = runc.folder.path().join("log").to_string_lossy().into_owned();
        // The container would hold a pipe open.
        let started = Command::new(&runc.program)
            .args(["--log", &log, "run", "--detach", "--bundle", &bundle, &runc.name])
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .status();
        let status = started.expect("runc is installed");
        assert!(status.success(), "{}", fs::read_to_string(log).unwrap_or_default());
        runc
    }

    fn call(&self, words: &[&str], input: &[u8]) -> Output {
        run(Command::new(&self.program).args(words).arg(&self.name), input)
    }

    /// Changes some limits, as containerd does: all are set.
    fn update(&mut self, cpu: &Cpu) -> Result<(), String> {
        change(&mut self.cpu, cpu);
        let resources = json!({ "cpu": self.cpu }).to_string();
        let output = self.call(&["update", "--resources", "-"], resources.as_bytes());
        output.status.success().then_some(()).ok_or(text(&output.stderr))
    }

    fn read(&self, controller: &str, file: &str) -> String {
        let above = if has_idle() { PathBuf::from(ROOT) } else { Path::new(ROOT).join(controller) };
        let file = above.join(&self.name).join(file);
        fs::read_to_string(&file)
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()))
            .trim()
            .to_owned()
    }
}

impl Drop for Runc {
    fn drop(&mut self) {
        until("the container is deleted", || {
            let _ = self.call(&["delete", "--force"], b"");
            !self.call(&["state"], b"").status.success()
        });
    }
}

/// Enters changes of limits.
fn change(cpu: &mut Value, changes: &Cpu) {
    if let Some(shares) = changes.shares {
        cpu["shares"] = shares.value.into();
    }
    if !changes.cpus.is_empty() {
        cpu["cpus"] = changes.cpus.clone().into();
    }
}

fn look(core: u16) -> Look {
    Look { managed: vec![core.into()], guaranteed_outside: 0, held: 0 }
}

#[test]
fn a_batch_pod_is_idle_on_the_lent_cores_and_follows_them() {
    let Some(program) = runc() else { return };
    let annotations = HashMap::from([("tailwater.io/class".to_owned(), "best-effort".to_owned())]);
    let pod = Pod { annotations, ..Pod::default() };
    let container = Container { state: CREATED, ..Container::default() };
    let request = ContainerRequest { pod: Some(pod), container: Some(container) };
    let cpus = cpu_numbers();
    let [first, .., last] = cpus[..] else { return eprintln!("skipped: one CPU") };

    let given = adjust(&request, Some(&look(last)), has_idle()).expect("it is a batch pod's");
    let given = given.linux.and_then(|linux| linux.resources).expect("limits");
    // As of a pod with half a core requested.
    let mut cpu = json!({ "shares": 512, "quota": 50_000, "period": 100_000 });
    change(&mut cpu, &given.cpu.expect("limits of processor time"));
    let mut runc = Runc::start(program, cpu, &given.unified);
    let settings = |runc: &Runc| {
        let idle = has_idle().then(|| runc.read("cpu", "cpu.idle"));
        (idle, runc.read("cpuset", "cpuset.cpus"))
    };
    let idle = has_idle().then(|| "1".to_owned());
    assert_eq!(settings(&runc), (idle.clone(), last.to_string()));

    // The IOKernel lends another core.
    let update = keep(&request, Some(&look(first)), has_idle()).expect("it is a batch pod's");
    let changes = update.linux.and_then(|linux| linux.resources?.cpu).expect("limits of processor time");
    runc.update(&changes).expect("it is changed");
    assert_eq!(settings(&runc), (idle, first.to_string()));
}
