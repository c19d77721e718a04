//! What a container gets before it starts, and keeps when its limits are changed.
//!
//! Pure. A container of a pod with the annotation `tailwater.io/class: best-effort`, and one with
//! devices `tailwater.io/batch-core`, becomes a batch co-runner, as by `tailwater run --batch
//! --cgroup`: its control group is idle among those of its pod, and has the lent cores only. A
//! container with devices of this agent gets its name; one of a service loses its CPU limit, which
//! would stop its kthreads. All others are left as they are.
//!
//! No container gets the IOKernel's socket here; it comes with devices. The right to annotate a pod
//! thus gives no access to the IOKernel, which takes root of a container without a user namespace
//! for root of the node.

use super::api::{
    Adjustment, Container, ContainerRequest, Cpu, IDLE, IoPriority, Linux, Number, Pod, Resources, Update,
    UpdateLinux, Variable,
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
        let has_devices = value(container, "TAILWATER_IOKERNEL").is_some()
            && value(container, "TAILWATER_KTHREADS").is_some();
        let is_batch = pod.annotations.get(CLASS.0).is_some_and(|class| class == CLASS.1)
            || has_devices && value(container, "TAILWATER_CLASS") == Some(CLASS.1);
        (is_batch || has_devices).then_some(Self { pod, container, is_batch, has_devices })
    }

    /// Returns its limits of processor time, as far as they are the agent's.
    fn cpu(&self, look: Option<&Look>) -> Cpu {
        // No list at all would mean all cores.
        let cpus = look.filter(|_| self.is_batch).map(Look::cpuset).unwrap_or_default();
        Cpu { quota: (!self.is_batch).then_some(Number { value: -1 }), cpus }
    }
}

/// Returns the value of a variable of the environment; of several, the last counts.
fn value<'a>(container: &'a Container, key: &str) -> Option<&'a str> {
    let mut values = container.variables.iter().filter_map(|variable| variable.split_once('='));
    values.rfind(|(name, _)| *name == key).map(|(_, value)| value)
}

/// Returns what is changed; `None`: nothing. `look` is `None` while no IOKernel answers: a
/// co-runner is then idle, and has the cores that it had.
#[must_use]
pub fn adjust(request: &ContainerRequest, look: Option<&Look>) -> Option<Adjustment> {
    let ours = Ours::of(request)?;
    let Ours { pod, container, is_batch, has_devices } = ours;
    let mut adjustment = Adjustment::default();
    if has_devices {
        let mut set = |key: &str, value: String| {
            adjustment.variables.push(Variable { key: key.to_owned(), value });
        };
        // A name of another namespace could be that of another's program; one without a slash would
        // count as guaranteed outside of pods.
        let is_own =
            |name: &str| name.strip_prefix(&*pod.namespace).is_some_and(|name| name.starts_with('/'));
        if !value(container, "TAILWATER_NAME").is_some_and(is_own) {
            set("TAILWATER_NAME", name(&pod.namespace, &pod.name, &container.name));
        }
        if is_batch && value(container, "TAILWATER_CLASS").is_none() {
            set("TAILWATER_CLASS", CLASS.1.to_owned());
        }
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
        adjust(&request(class, variables), Some(&look))
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
        assert_eq!(adjustment.variables, [], "no way to the socket");
        // Without an IOKernel: no list, which leaves the cores as they are.
        let without = adjust(&request(Some("best-effort"), &[]), None).unwrap();
        assert_eq!(without.linux.unwrap().resources.unwrap().cpu, Some(Cpu::default()));
    }

    const DEVICES: [&str; 2] = ["TAILWATER_IOKERNEL=/run/tailwater/socket", "TAILWATER_KTHREADS=2"];

    #[test]
    fn a_service_with_devices_gets_its_name_and_loses_its_limit() {
        let adjustment = adjusted(None, &DEVICES).unwrap();
        let resources = adjustment.linux.as_ref().unwrap().resources.as_ref().unwrap();
        assert_eq!(resources.cpu.as_ref().unwrap().quota, Some(Number { value: -1 }));
        assert!(resources.unified.is_empty());
        assert_eq!(variable(&adjustment, "TAILWATER_NAME"), Some("night/xz-1/xz"));
        assert_eq!(adjustment.variables.len(), 1);
    }

    #[test]
    fn a_name_of_the_pods_own_stays_if_it_is_in_its_namespace() {
        let named = |name: &str| {
            let variable_of_pod = format!("TAILWATER_NAME={name}");
            let adjustment = adjusted(None, &[DEVICES[0], DEVICES[1], &variable_of_pod]).unwrap();
            variable(&adjustment, "TAILWATER_NAME").unwrap_or(name).to_owned()
        };
        assert_eq!(named("night/mine"), "night/mine");
        for other in ["mine", "day/web-1/web", "nightly/web-1/web", "night"] {
            assert_eq!(named(other), "night/xz-1/xz", "{other}");
        }
    }

    #[test]
    fn a_container_with_devices_of_batch_is_a_co_runner_and_keeps_its_limit() {
        let classed = [DEVICES[0], DEVICES[1], "TAILWATER_CLASS=best-effort"];
        for (class, variables) in [(None, &classed[..]), (Some("best-effort"), &DEVICES[..])] {
            let adjustment = adjusted(class, variables).unwrap();
            let resources = adjustment.linux.as_ref().unwrap().resources.as_ref().unwrap();
            assert_eq!(resources.cpu, Some(Cpu { quota: None, cpus: "1,3".to_owned() }), "{variables:?}");
            assert_eq!(resources.unified["cpu.idle"], "1");
            assert_eq!(variable(&adjustment, "TAILWATER_NAME"), Some("night/xz-1/xz"));
        }
        let annotated = adjusted(Some("best-effort"), &DEVICES).unwrap();
        assert_eq!(variable(&annotated, "TAILWATER_CLASS"), Some("best-effort"));
    }

    #[test]
    fn what_a_container_was_given_stays_when_its_limits_are_changed() {
        let look = Look { managed: vec![1, 3], guaranteed_outside: 0, held: 0 };
        let kept = |class, variables: &[&str], look| {
            let update = keep(&request(class, variables), look)?;
            assert_eq!(update.container, "7");
            update.linux?.resources?.cpu
        };
        let cores = Cpu { quota: None, cpus: "1,3".to_owned() };
        assert_eq!(kept(Some("best-effort"), &[], Some(&look)), Some(cores));
        let unlimited = Cpu { quota: Some(Number { value: -1 }), cpus: String::new() };
        assert_eq!(kept(None, &DEVICES, Some(&look)), Some(unlimited));
        assert_eq!(kept(Some("best-effort"), &[], None), Some(Cpu::default()), "the requested cores");
        assert_eq!(kept(None, &[], Some(&look)), None);
    }

    #[test]
    fn other_containers_are_left_as_they_are() {
        assert_eq!(adjusted(None, &["TAILWATER_IOKERNEL=@tailwater"]), None);
        assert_eq!(adjusted(Some("latency-critical"), &[]), None);
        assert_eq!(adjust(&ContainerRequest::default(), None), None);
    }
}
