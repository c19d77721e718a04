//! Messages that are decoded whole: the control socket's and the spin protocol's.

use tailwater_shm::control::{ClientMessage, ServerMessage};
use tailwater_workload::spin::{Reply, Request};

/// Decodes both directions of the control socket, as `control::receive` decodes a packet.
pub fn control(data: &[u8]) {
    if let Ok(message) = serde_json::from_slice::<ClientMessage>(data) {
        let again = serde_json::to_vec(&message).expect("control messages have string keys only");
        assert_eq!(serde_json::from_slice::<ClientMessage>(&again).unwrap(), message);
    }
    // Counters are any JSON, whose numbers need not survive a round trip: reading them must
    // succeed.
    if let Ok(message) = serde_json::from_slice::<ServerMessage>(data)
        && !matches!(message, ServerMessage::Stats(_))
    {
        let again = serde_json::to_vec(&message).expect("control messages have string keys only");
        assert_eq!(serde_json::from_slice::<ServerMessage>(&again).unwrap(), message);
    }
}

/// Decodes a datagram as the spin server does, and as its client does.
pub fn spin(data: &[u8]) {
    if let Ok(request) = Request::decode(data) {
        assert_eq!(request.encode(), data);
    }
    if let Ok(reply) = Reply::decode(data) {
        assert_eq!(reply.encode(), data);
    }
}
