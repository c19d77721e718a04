//! Advice when no server answers over kernel sockets at an address of Tailwater's network.
//!
//! Linux reaches programs on Tailwater through a port of their IOKernel only, and a network card's
//! other end, or a TAP device, is such a port.

use std::net::IpAddr;

use serde_json::Value;
use tailwater_iokernel::Config;

/// Returns the advice, given the IOKernel's statistics where one runs; `None` for an address that
/// is not Tailwater's.
pub fn advice(server: IpAddr, socket: &str, statistics: Option<&Value>) -> Option<String> {
    let runtimes = statistics.and_then(|statistics| statistics["runtimes"].as_array());
    let owner = runtimes.into_iter().flatten().find(|runtime| has_address(runtime, server));
    let whose = match owner {
        Some(runtime) => {
            format!("{server} is the address of {} at the IOKernel {socket}", runtime["name"].as_str()?)
        }
        None if is_in_default_network(server) => {
            format!("{server} is in the network that IOKernels give addresses from")
        }
        None => return None,
    };
    let ports =
        statistics.and_then(|statistics| statistics["ports"].as_array()).is_some_and(|all| !all.is_empty());
    let reach = match (statistics, ports) {
        (Some(_), true) => {
            "which Linux reaches through a port of it only: check `tailwater stats --json` and `ip route`"
        }
        (Some(_), false) => {
            "which Linux does not reach, because that IOKernel has no port: stop it and its programs, and start it with \
             --tap tw0 --host-ip 10.77.0.1"
        }
        (None, _) => {
            "which Linux does not reach without an IOKernel: start one with --tap tw0 --host-ip 10.77.0.1"
        }
    };
    Some(format!("{whose}, {reach}, or generate with --over tailwater"))
}

fn has_address(runtime: &Value, server: IpAddr) -> bool {
    let is = |key: &str| runtime[key].as_str().and_then(|text| text.parse::<IpAddr>().ok()) == Some(server);
    is("ip") || is("ip6")
}

fn is_in_default_network(server: IpAddr) -> bool {
    let Config { network, network6, prefix_len, .. } = Config::default();
    match server {
        IpAddr::V4(ip) => {
            let bits = 32 - u32::from(prefix_len);
            ip.to_bits() >> bits == network.to_bits() >> bits
        }
        IpAddr::V6(ip) => ip.to_bits() >> 64 == network6.to_bits() >> 64,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_address_of_a_program_is_named_with_the_ways_to_it() {
        let alone =
            json!({ "runtimes": [{ "name": "web", "ip": "10.9.0.2", "ip6": "fd00::2" }], "ports": [] });
        for server in ["10.9.0.2", "fd00::2"] {
            let advice = advice(server.parse().unwrap(), "@here", Some(&alone)).unwrap();
            assert!(advice.contains("web at the IOKernel @here") && advice.contains("--tap"), "{advice}");
            assert!(advice.ends_with("--over tailwater"), "{advice}");
        }
        let with_port =
            json!({ "runtimes": [{ "name": "web", "ip": "10.9.0.2" }], "ports": [{ "name": "tw0" }] });
        let advice = advice("10.9.0.2".parse().unwrap(), "@here", Some(&with_port)).unwrap();
        assert!(advice.contains("ip route") && !advice.contains("--tap"), "{advice}");
    }

    #[test]
    fn without_an_iokernel_the_default_network_is_known_and_no_other() {
        let advice = |server: &str| advice(server.parse().unwrap(), "@here", None);
        assert!(advice("10.77.0.2").unwrap().contains("--over tailwater"));
        assert!(advice("fd00:7477::2").is_some());
        assert_eq!(advice("127.0.0.1"), None);
        assert_eq!(advice("10.78.0.2"), None);
        assert_eq!(advice("::1"), None);
    }
}
