//! What a container gets before it starts.
//!
//! Pure. A container of a pod with the annotation `tailwater.io/class: best-effort` becomes a batch
//! co-runner, as by `tailwater run --batch --cgroup`: its control group is idle and has the lent
//! cores only. A container with devices of this agent gets its name, and loses its CPU limit, which
//! would stop its kthreads. All others are left as they are.

use std::collections::HashMap;
use std::path::Path;

use super::api::{
    Adjustment, Cpu, CreateRequest, IDLE, IoPriority, Linux, Mount, Number, Resources, Variable,
};
use crate::cores::{Look, name};

/// The annotation, and its one value.
const CLASS: (&str, &str) = ("tailwater.io/class", "best-effort");

/// Returns what is changed; `None`: nothing. `look` is `None` while no IOKernel answers: a
/// co-runner is then idle, and has the cores that it had.
#[must_use]
pub fn adjust(request: &CreateRequest, look: Option<&Look>, iokernel: &Path) -> Option<Adjustment> {
    let (pod, container) = (request.pod.as_ref()?, request.container.as_ref()?);
    let has = |key: &str| container.variables.iter().any(|variable| variable.starts_with(&format!("{key}=")));
    let is_batch = pod.annotations.get(CLASS.0).is_some_and(|class| class == CLASS.1);
    // By a device plugin of this agent.
    let has_devices = has("TAILWATER_IOKERNEL") && has("TAILWATER_KTHREADS");
    if !is_batch && !has_devices {
        return None;
    }
    let mut adjustment = Adjustment::default();
    let mut set = |key: &str, value: String| {
        if !has(key) {
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
    let quota = has_devices.then_some(Number { value: -1 });
    let linux = if is_batch {
        // No list at all would mean all cores.
        let cpus = look.map(Look::cpuset).unwrap_or_default();
        let unified = HashMap::from([("cpu.idle".to_owned(), "1".to_owned())]);
        Linux {
            resources: Some(Resources { cpu: Some(Cpu { quota, cpus }), unified }),
            io_priority: Some(IoPriority { class: IDLE }),
        }
    } else {
        Linux {
            resources: Some(Resources {
                cpu: Some(Cpu { quota, cpus: String::new() }),
                ..Resources::default()
            }),
            io_priority: None,
        }
    };
    adjustment.linux = Some(linux);
    Some(adjustment)
}

#[cfg(test)]
mod tests {
    use super::super::api::{Container, Pod};
    use super::*;

    fn request(class: Option<&str>, variables: &[&str]) -> CreateRequest {
        let annotations = class.map(|class| (CLASS.0.to_owned(), class.to_owned())).into_iter().collect();
        let pod = Pod { name: "xz-1".to_owned(), namespace: "night".to_owned(), annotations };
        let variables = variables.iter().map(|&variable| variable.to_owned()).collect();
        CreateRequest { pod: Some(pod), container: Some(Container { name: "xz".to_owned(), variables }) }
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
    fn other_containers_are_left_as_they_are() {
        assert_eq!(adjusted(None, &["TAILWATER_IOKERNEL=@tailwater"]), None);
        assert_eq!(adjusted(Some("latency-critical"), &[]), None);
        assert_eq!(adjust(&CreateRequest::default(), None, Path::new("/a/b")), None);
    }
}
