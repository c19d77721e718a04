//! What a container gets before it starts, and keeps when its limits are changed.
//!
//! Pure. A container of a pod with the annotation `tailwater.io/class: best-effort` becomes a batch
//! co-runner, as by `tailwater run --batch --cgroup`: its control group is idle and has the lent
//! cores only. A container with devices of this agent gets its name, and loses its CPU limit, which
//! would stop its kthreads. All others are left as they are.

use std::path::Path;

use super::api::{
    Adjustment, Container, ContainerRequest, Cpu, IDLE, IoPriority, Linux, Mount, Number, Pod, Resources,
    Update, UpdateLinux, Variable,
};
use crate::cores::{Look, name};

/// The annotation, and its one value.
const CLASS: (&str, &str) = ("tailwater.io/class", "best-effort");

/// A container that has to do with the agent.
struct Ours<'a> {
    pod: &'a Pod,
    container: &'a Container,
    is_batch: bool,
    /// Of a device plugin of this agent.
    has_devices: bool,
}

impl<'a> Ours<'a> {
    fn of(request: &'a ContainerRequest) -> Option<Self> {
        let (pod, container) = (request.pod.as_ref()?, request.container.as_ref()?);
        let is_batch = pod.annotations.get(CLASS.0).is_some_and(|class| class == CLASS.1);
        let has_devices = has(container, "TAILWATER_IOKERNEL") && has(container, "TAILWATER_KTHREADS");
        (is_batch || has_devices).then_some(Self { pod, container, is_batch, has_devices })
    }

    /// Returns its limits of processor time, as far as they are the agent's.
    fn cpu(&self, look: Option<&Look>) -> Cpu {
        // No list at all would mean all cores.
        let cpus = look.filter(|_| self.is_batch).map(Look::cpuset).unwrap_or_default();
        Cpu { quota: self.has_devices.then_some(Number { value: -1 }), cpus }
    }
}

fn has(container: &Container, key: &str) -> bool {
    container.variables.iter().any(|variable| variable.split_once('=').is_some_and(|(name, _)| name == key))
}

/// Returns what is changed; `None`: nothing. `look` is `None` while no IOKernel answers: a
/// co-runner is then idle, and has the cores that it had.
#[must_use]
pub fn adjust(request: &ContainerRequest, look: Option<&Look>, iokernel: &Path) -> Option<Adjustment> {
    let ours = Ours::of(request)?;
    let Ours { pod, container, is_batch, has_devices } = ours;
    let mut adjustment = Adjustment::default();
    let mut set = |key: &str, value: String| {
        if !has(container, key) {
            adjustment.variables.push(Variable { key: key.to_owned(), value });
        }
    };
    set("TAILWATER_NAME", name(&pod.namespace, &pod.name, &container.name));
    if is_batch {
        set("TAILWATER_CLASS", CLASS.1.to_owned());
        set("TAILWATER_IOKERNEL", iokernel.display().to_string());
    }
    if !has_devices {
        let folder = iokernel.parent().unwrap_or(Path::new("/")).display().to_string();
        let options = ["rbind", "ro"].map(str::to_owned).to_vec();
        adjustment.mounts.push(Mount {
            destination: folder.clone(),
            kind: "bind".to_owned(),
            source: folder,
            options,
        });
    }
    let mut resources = Resources { cpu: Some(ours.cpu(look)), ..Resources::default() };
    if is_batch {
        resources.unified.insert("cpu.idle".to_owned(), "1".to_owned());
    }
    let io_priority = is_batch.then_some(IoPriority { class: IDLE });
    adjustment.linux = Some(Linux { resources: Some(resources), io_priority });
    Some(adjustment)
}

/// Returns what a container keeps whose limits are changed while it runs: a kubelet with the CPU
/// manager `static` sets the cores of each container seconds after its start, and a pod that is
/// resized gets its CPU limit anew.
#[must_use]
pub fn keep(request: &ContainerRequest, look: Option<&Look>) -> Option<Update> {
    let ours = Ours::of(request)?;
    let resources = Resources { cpu: Some(ours.cpu(look)), ..Resources::default() };
    Some(Update {
        container: ours.container.id.clone(),
        linux: Some(UpdateLinux { resources: Some(resources) }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(class: Option<&str>, variables: &[&str]) -> ContainerRequest {
        let annotations = class.map(|class| (CLASS.0.to_owned(), class.to_owned())).into_iter().collect();
        let pod = Pod { name: "xz-1".to_owned(), namespace: "night".to_owned(), annotations };
        let variables = variables.iter().map(|&variable| variable.to_owned()).collect();
        let container = Container { id: "7".to_owned(), name: "xz".to_owned(), variables };
        ContainerRequest { pod: Some(pod), container: Some(container) }
    }

    fn adjusted(class: Option<&str>, variables: &[&str]) -> Option<Adjustment> {
        let look = Look { managed: vec![1, 3], guaranteed_outside: 0, held: 0 };
        adjust(&request(class, variables), Some(&look), Path::new("/run/tailwater/socket"))
    }

    fn variable<'a>(adjustment: &'a Adjustment, key: &str) -> Option<&'a str> {
        let mut variables = adjustment.variables.iter();
        Some(&variables.find(|variable| variable.key == key)?.value)
    }

    #[test]
    fn a_container_of_an_annotated_pod_is_a_co_runner_on_the_lent_cores() {
        let adjustment = adjusted(Some("best-effort"), &["PATH=/bin"]).unwrap();
        let linux = adjustment.linux.as_ref().unwrap();
        let resources = linux.resources.as_ref().unwrap();
        assert_eq!(resources.cpu, Some(Cpu { quota: None, cpus: "1,3".to_owned() }));
        assert_eq!(resources.unified["cpu.idle"], "1");
        assert_eq!(linux.io_priority, Some(IoPriority { class: IDLE }));
        assert_eq!(adjustment.mounts[0].destination, "/run/tailwater");
        assert_eq!(variable(&adjustment, "TAILWATER_NAME"), Some("night/xz-1/xz"));
        assert_eq!(variable(&adjustment, "TAILWATER_CLASS"), Some("best-effort"));
        // Without an IOKernel: no list, which leaves the cores as they are.
        let without =
            adjust(&request(Some("best-effort"), &[]), None, Path::new("/run/tailwater/socket")).unwrap();
        assert_eq!(without.linux.unwrap().resources.unwrap().cpu, Some(Cpu::default()));
    }

    #[test]
    fn a_container_with_devices_gets_its_name_and_loses_its_limit() {
        let devices = ["TAILWATER_IOKERNEL=/run/tailwater/socket", "TAILWATER_KTHREADS=2"];
        let adjustment = adjusted(None, &devices).unwrap();
        let resources = adjustment.linux.as_ref().unwrap().resources.as_ref().unwrap();
        assert_eq!(resources.cpu.as_ref().unwrap().quota, Some(Number { value: -1 }));
        assert!(resources.unified.is_empty() && adjustment.mounts.is_empty(), "mounted by the device plugin");
        assert_eq!(adjustment.variables.len(), 1);
        // The pod's own name stays.
        let named = [devices[0], devices[1], "TAILWATER_NAME=mine"];
        assert_eq!(adjusted(None, &named).unwrap().variables, []);
    }

    #[test]
    fn what_a_container_was_given_stays_when_its_limits_are_changed() {
        let look = Look { managed: vec![1, 3], guaranteed_outside: 0, held: 0 };
        let kept = |class, variables: &[&str], look| {
            let update = keep(&request(class, variables), look)?;
            assert_eq!(update.container, "7");
            update.linux?.resources?.cpu
        };
        let devices = ["TAILWATER_IOKERNEL=/run/tailwater/socket", "TAILWATER_KTHREADS=2"];
        let cores = Cpu { quota: None, cpus: "1,3".to_owned() };
        assert_eq!(kept(Some("best-effort"), &[], Some(&look)), Some(cores));
        let unlimited = Cpu { quota: Some(Number { value: -1 }), cpus: String::new() };
        assert_eq!(kept(None, &devices, Some(&look)), Some(unlimited));
        assert_eq!(kept(Some("best-effort"), &[], None), Some(Cpu::default()), "the requested cores");
        assert_eq!(kept(None, &[], Some(&look)), None);
    }

    #[test]
    fn other_containers_are_left_as_they_are() {
        assert_eq!(adjusted(None, &["TAILWATER_IOKERNEL=@tailwater"]), None);
        assert_eq!(adjusted(Some("latency-critical"), &[]), None);
        assert_eq!(adjust(&ContainerRequest::default(), None, Path::new("/a/b")), None);
    }
}
