//! What a container gets before it starts, keeps when its limits are changed, and gets late if it
//! started while no agent ran.
//!
//! Pure. A container of a pod with the annotation `tailwater.io/class: best-effort`, and one with
//! devices `tailwater.io/batch-core`, becomes one of a batch pod, as by `tailwater run --batch
//! --cgroup`: its control group is idle among those of its pod, and has the lent cores only. A
//! container with devices of this agent gets its name; one of a service loses its CPU limit, which
//! would stop its kthreads. All others are left as they are.
//!
//! Linux refuses a weight for a group that is idle, and container runtimes set all limits of a
//! container anew when one of them changes: with `cpu.idle` those of a batch pod's have no weight
//! among them.
//!
//! Devices are known by the annotation of the container that the device plugin gave with them. Its
//! environment would not do: the author of a pod can write the same variables, and would be rid of
//! the limit. A container runtime may be configured to hand annotations of pods on to containers: a
//! container whose pod has the same one may have no devices. The doubt costs the removal of the
//! limit only; what binds a container with devices binds it all the same.
//!
//! No container gets the IOKernel's socket here; it comes with devices. The right to annotate a pod
//! thus gives no access to the IOKernel, which takes root of a container without a user namespace
//! for root of the node.

use std::collections::{HashMap, HashSet};

use super::api::{
    Adjustment, CREATED, Container, ContainerRequest, Cpu, IDLE, IoPriority, Linux, Number, Pod, Resources,
    Synchronize, Update, UpdateLinux, Variable,
};
use crate::cores::{Look, name};
use crate::plugin::Kind;

/// The annotation, and its one value.
const CLASS: (&str, &str) = ("tailwater.io/class", "best-effort");

/// A container that has to do with the agent.
struct Ours<'a> {
    pod: &'a Pod,
    container: &'a Container,
    is_batch: bool,
    /// Of a device plugin of this agent.
    has_devices: bool,
    /// A service that certainly has devices.
    is_unlimited: bool,
}

impl<'a> Ours<'a> {
    fn of(pod: &'a Pod, container: &'a Container) -> Option<Self> {
        let has = |kind: Kind| container.annotations.contains_key(kind.resource());
        let has_devices = has(Kind::Core) || has(Kind::Batch);
        let is_annotated = pod.annotations.get(CLASS.0).is_some_and(|class| class == CLASS.1);
        let is_batch = is_annotated || has(Kind::Batch);
        let is_in_doubt = pod.annotations.contains_key(Kind::Core.resource());
        let is_unlimited = !is_batch && !is_in_doubt;
        (is_batch || has_devices).then_some(Self { pod, container, is_batch, has_devices, is_unlimited })
    }

    /// Returns its limits of processor time, as far as they are the agent's.
    fn cpu(&self, look: Option<&Look>, has_idle: bool) -> Cpu {
        // No list at all would mean all cores.
        let cpus = look.filter(|_| self.is_batch).map(Look::cpuset).unwrap_or_default();
        let shares = (self.is_batch && has_idle).then_some(Number { value: 0 });
        Cpu { shares, quota: self.is_unlimited.then_some(Number { value: -1 }), cpus }
    }

    /// Returns the limits of one that exists.
    fn update(&self, look: Option<&Look>, has_idle: bool) -> Update {
        let resources = Resources { cpu: Some(self.cpu(look, has_idle)), ..Resources::default() };
        Update {
            container: self.container.id.clone(),
            linux: Some(UpdateLinux { resources: Some(resources) }),
        }
    }
}

/// Returns the value of a variable of the environment; of several, the last counts.
fn value<'a>(container: &'a Container, key: &str) -> Option<&'a str> {
    let mut values = container.variables.iter().filter_map(|variable| variable.split_once('='));
    values.rfind(|(name, _)| *name == key).map(|(_, value)| value)
}

/// Returns what is changed; `None`: nothing. `look` is `None` while no IOKernel answers: a
/// batch pod's container is then idle, and has the cores that it had. `has_idle`: control groups
/// are of version 2; a container runtime refuses their files elsewhere.
#[must_use]
pub fn adjust(request: &ContainerRequest, look: Option<&Look>, has_idle: bool) -> Option<Adjustment> {
    let ours = Ours::of(request.pod.as_ref()?, request.container.as_ref()?)?;
    let Ours { pod, container, is_batch, has_devices, .. } = ours;
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
    let mut resources = Resources { cpu: Some(ours.cpu(look, has_idle)), ..Resources::default() };
    if is_batch && has_idle {
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
pub fn keep(request: &ContainerRequest, look: Option<&Look>, has_idle: bool) -> Option<Update> {
    Some(Ours::of(request.pod.as_ref()?, request.container.as_ref()?)?.update(look, has_idle))
}

/// The containers that exist, as far as the parts of their list have come.
#[derive(Debug, Default)]
pub struct Existing {
    /// By number.
    pods: HashMap<String, Pod>,
    containers: Vec<Container>,
}

impl Existing {
    /// Enters a part. Of annotations and environments, which are long, only what counts is kept.
    pub fn enter(&mut self, part: Synchronize) {
        let counts = |key: &String, _: &mut String| key.starts_with("tailwater.io/");
        for mut pod in part.pods {
            pod.annotations.retain(counts);
            self.pods.insert(pod.id.clone(), pod);
        }
        for mut container in part.containers {
            container.annotations.retain(counts);
            container.variables.clear();
            self.containers.push(container);
        }
    }

    /// Returns the numbers of those that have not started.
    #[must_use]
    pub fn unstarted(&self) -> HashSet<String> {
        let unstarted = self.containers.iter().filter(|container| container.state == CREATED);
        unstarted.map(|container| container.id.clone()).collect()
    }

    /// Returns what becomes of their limits. The name, the class of I/O and `cpu.idle` are given to
    /// a container before it starts only.
    #[must_use]
    pub fn updates(&self, look: Option<&Look>, has_idle: bool) -> Vec<Update> {
        let ours = self
            .containers
            .iter()
            .filter_map(|container| Ours::of(self.pods.get(&container.pod)?, container));
        ours.map(|ours| ours.update(look, has_idle)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CORE: &str = "tailwater.io/core";
    const BATCH: &str = "tailwater.io/batch-core";

    fn map(keys: &[&str]) -> HashMap<String, String> {
        keys.iter().map(|&key| (key.to_owned(), "2".to_owned())).collect()
    }

    /// A container of a pod of a class, with devices of a resource.
    fn request(class: Option<&str>, devices: Option<&str>, variables: &[&str]) -> ContainerRequest {
        let annotations = class.map(|class| (CLASS.0.to_owned(), class.to_owned())).into_iter().collect();
        let namespace = "night".to_owned();
        let pod = Pod { id: "p".to_owned(), name: "xz-1".to_owned(), namespace, annotations };
        let variables = variables.iter().map(|&variable| variable.to_owned()).collect();
        let (id, name) = ("7".to_owned(), "xz".to_owned());
        let annotations = map(devices.as_slice());
        let state = CREATED;
        let container = Container { id, pod: "p".to_owned(), name, state, annotations, variables };
        ContainerRequest { pod: Some(pod), container: Some(container) }
    }

    fn look() -> Look {
        Look { managed: vec![1, 3], guaranteed_outside: 0, held: 0 }
    }

    /// Limits of a batch pod's container with these cores.
    fn of_batch(cpus: &str) -> Cpu {
        Cpu { shares: Some(Number { value: 0 }), quota: None, cpus: cpus.to_owned() }
    }

    fn adjusted(class: Option<&str>, devices: Option<&str>, variables: &[&str]) -> Option<Adjustment> {
        adjust(&request(class, devices, variables), Some(&look()), true)
    }

    fn variable<'a>(adjustment: &'a Adjustment, key: &str) -> Option<&'a str> {
        let mut variables = adjustment.variables.iter();
        Some(&variables.find(|variable| variable.key == key)?.value)
    }

    #[test]
    fn a_container_of_an_annotated_pod_is_a_batch_pods_on_the_lent_cores() {
        let adjustment = adjusted(Some("best-effort"), None, &["PATH=/bin"]).unwrap();
        let linux = adjustment.linux.as_ref().unwrap();
        let resources = linux.resources.as_ref().unwrap();
        assert_eq!(resources.cpu, Some(of_batch("1,3")));
        assert_eq!(resources.unified["cpu.idle"], "1");
        assert_eq!(linux.io_priority, Some(IoPriority { class: IDLE }));
        assert_eq!(adjustment.variables, [], "no way to the socket");
        // Without an IOKernel: no list, which leaves the cores as they are. With control groups of
        // version 1: no file of version 2.
        let without = adjust(&request(Some("best-effort"), None, &[]), None, false).unwrap();
        let resources = without.linux.unwrap().resources.unwrap();
        assert_eq!((resources.cpu, resources.unified), (Some(Cpu::default()), HashMap::new()));
    }

    #[test]
    fn a_service_with_devices_gets_its_name_and_loses_its_limit() {
        let adjustment = adjusted(None, Some(CORE), &[]).unwrap();
        let resources = adjustment.linux.as_ref().unwrap().resources.as_ref().unwrap();
        assert_eq!(resources.cpu.as_ref().unwrap().quota, Some(Number { value: -1 }));
        assert_eq!(resources.cpu.as_ref().unwrap().shares, None, "its weight stays");
        assert!(resources.unified.is_empty());
        assert_eq!(variable(&adjustment, "TAILWATER_NAME"), Some("night/xz-1/xz"));
        assert_eq!(adjustment.variables.len(), 1);
    }

    #[test]
    fn a_name_of_the_pods_own_stays_if_it_is_in_its_namespace() {
        let named = |name: &str| {
            let adjustment = adjusted(None, Some(CORE), &[&format!("TAILWATER_NAME={name}")]).unwrap();
            variable(&adjustment, "TAILWATER_NAME").unwrap_or(name).to_owned()
        };
        assert_eq!(named("night/mine"), "night/mine");
        for other in ["mine", "day/web-1/web", "nightly/web-1/web", "night"] {
            assert_eq!(named(other), "night/xz-1/xz", "{other}");
        }
    }

    #[test]
    fn a_container_with_devices_of_batch_is_a_batch_pods_and_keeps_its_limit() {
        for (class, devices) in [(None, BATCH), (Some("best-effort"), CORE)] {
            let adjustment = adjusted(class, Some(devices), &[]).unwrap();
            let resources = adjustment.linux.as_ref().unwrap().resources.as_ref().unwrap();
            assert_eq!(resources.cpu, Some(of_batch("1,3")), "{devices}");
            assert_eq!(resources.unified["cpu.idle"], "1");
            assert_eq!(variable(&adjustment, "TAILWATER_NAME"), Some("night/xz-1/xz"));
            assert_eq!(variable(&adjustment, "TAILWATER_CLASS"), Some("best-effort"));
        }
    }

    #[test]
    fn a_pods_author_is_not_rid_of_the_limit_by_variables_and_annotations() {
        let all = [
            "TAILWATER_IOKERNEL=/run/tailwater/socket",
            "TAILWATER_KTHREADS=2",
            "TAILWATER_CLASS=best-effort",
        ];
        assert_eq!(adjusted(None, None, &all), None);
    }

    #[test]
    fn what_binds_a_container_with_devices_binds_it_also_with_the_annotation_in_its_pod() {
        // As of a pod's author who would be rid of it, or of a runtime that hands annotations on.
        for (resource, cpu) in [(CORE, Cpu::default()), (BATCH, of_batch("1,3"))] {
            let mut handed_on = request(None, Some(resource), &["TAILWATER_NAME=day/web-1/web"]);
            handed_on.pod.as_mut().unwrap().annotations = map(&[resource]);
            let adjustment = adjust(&handed_on, Some(&look()), true).unwrap();
            assert_eq!(variable(&adjustment, "TAILWATER_NAME"), Some("night/xz-1/xz"));
            let linux = adjustment.linux.unwrap();
            let resources = linux.resources.unwrap();
            assert_eq!(resources.cpu, Some(cpu), "{resource}");
            assert_eq!(resources.unified.contains_key("cpu.idle"), resource == BATCH);
            assert_eq!(linux.io_priority.is_some(), resource == BATCH);
        }
    }

    #[test]
    fn what_a_container_was_given_stays_when_its_limits_are_changed() {
        let kept = |class, devices, look| {
            let update = keep(&request(class, devices, &[]), look, true)?;
            assert_eq!(update.container, "7");
            update.linux?.resources?.cpu
        };
        let look = look();
        assert_eq!(kept(Some("best-effort"), None, Some(&look)), Some(of_batch("1,3")));
        let unlimited = Cpu { quota: Some(Number { value: -1 }), ..Cpu::default() };
        assert_eq!(kept(None, Some(CORE), Some(&look)), Some(unlimited));
        assert_eq!(kept(Some("best-effort"), None, None), Some(of_batch("")), "the requested cores");
        assert_eq!(kept(None, None, Some(&look)), None);
        let weighted = keep(&request(Some("best-effort"), None, &[]), None, false).unwrap();
        let resources = weighted.linux.unwrap().resources.unwrap();
        assert_eq!(resources.cpu, Some(Cpu::default()), "without cpu.idle it has its weight");
    }

    #[test]
    fn containers_that_exist_get_the_limits_that_they_would_have_been_given() {
        let mut existing = Existing::default();
        let mut enter = |pod: Option<Pod>, containers: &[Container]| {
            let part = Synchronize { pods: Vec::from_iter(pod), containers: containers.to_vec(), more: true };
            existing.enter(part);
        };
        let ContainerRequest { pod, container } = request(Some("best-effort"), None, &[]);
        let annotated = container.unwrap();
        // Each part has what fits: a container may come before its pod.
        enter(None, std::slice::from_ref(&annotated));
        enter(pod, &[]);
        let ordinary = Pod { id: "q".to_owned(), ..Pod::default() };
        let in_it = |id: &str, annotations| Container {
            id: id.to_owned(),
            pod: "q".to_owned(),
            annotations,
            ..annotated.clone()
        };
        let orphan = Container { pod: "gone".to_owned(), ..in_it("10", map(&[CORE])) };
        enter(Some(ordinary), &[in_it("8", map(&[CORE])), in_it("9", map(&[])), orphan]);
        let limits = existing.updates(Some(&look()), true).into_iter().map(|update| {
            let cpu = update.linux.and_then(|linux| linux.resources?.cpu).unwrap();
            (update.container, cpu.quota.map(|quota| quota.value), cpu.cpus)
        });
        let expected = [("7", None, "1,3"), ("8", Some(-1), "")];
        let expected = expected.map(|(id, quota, cpus)| (id.to_owned(), quota, cpus.to_owned()));
        assert_eq!(limits.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn other_containers_are_left_as_they_are() {
        assert_eq!(adjusted(None, None, &["TAILWATER_IOKERNEL=@tailwater"]), None);
        assert_eq!(adjusted(Some("latency-critical"), None, &[]), None);
        assert_eq!(adjust(&ContainerRequest::default(), None, true), None);
    }
}
