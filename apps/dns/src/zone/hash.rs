//! SHA-1 (RFC 3174), the only hash of NSEC3 records (RFC 5155, section 11).
//!
//! Owns the function and nothing else. It protects nothing here: resolvers verify signatures, and
//! these hashes only put names in an order.

/// Length of a hash in octets.
pub const LEN: usize = 20;

/// Length of a block in octets.
const BLOCK: usize = 64;

/// Maximum length of the input in octets: a name and a salt.
const MAX_INPUT: usize = 255 + 255;

/// Returns the hash of `parts`, one after the other.
///
/// # Panics
/// If they are longer than a name and a salt.
pub fn sha1(parts: [&[u8]; 2]) -> [u8; LEN] {
    let mut padded = [0; (MAX_INPUT + 9).next_multiple_of(BLOCK)];
    let len = parts[0].len() + parts[1].len();
    padded[..parts[0].len()].copy_from_slice(parts[0]);
    padded[parts[0].len()..len].copy_from_slice(parts[1]);
    // Section 4: a bit, and the length in bits at the end of the last block.
    padded[len] = 0x80;
    let end = (len + 9).next_multiple_of(BLOCK);
    padded[end - 8..end].copy_from_slice(&(len as u64 * 8).to_be_bytes());
    let mut state = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];
    for block in padded[..end].as_chunks::<BLOCK>().0 {
        state = add_block(state, block);
    }
    let mut hash = [0; LEN];
    for (octets, word) in hash.as_chunks_mut::<4>().0.iter_mut().zip(state) {
        *octets = word.to_be_bytes();
    }
    hash
}

/// Section 6.1.
fn add_block(state: [u32; 5], block: &[u8; BLOCK]) -> [u32; 5] {
    let mut words = [0u32; 80];
    for (word, octets) in words.iter_mut().zip(block.as_chunks::<4>().0) {
        *word = u32::from_be_bytes(*octets);
    }
    for t in 16..80 {
        words[t] = (words[t - 3] ^ words[t - 8] ^ words[t - 14] ^ words[t - 16]).rotate_left(1);
    }
    let [mut a, mut b, mut c, mut d, mut e] = state;
    for (t, word) in words.into_iter().enumerate() {
        let (mixed, constant): (u32, u32) = match t {
            0..20 => ((b & c) | (!b & d), 0x5a82_7999),
            20..40 => (b ^ c ^ d, 0x6ed9_eba1),
            40..60 => ((b & c) | (b & d) | (c & d), 0x8f1b_bcdc),
            _ => (b ^ c ^ d, 0xca62_c1d6),
        };
        let next =
            a.rotate_left(5).wrapping_add(mixed).wrapping_add(e).wrapping_add(word).wrapping_add(constant);
        (a, b, c, d, e) = (next, a, b.rotate_left(30), c, d);
    }
    let [sa, sb, sc, sd, se] = state;
    [sa.wrapping_add(a), sb.wrapping_add(b), sc.wrapping_add(c), sd.wrapping_add(d), se.wrapping_add(e)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(hash: [u8; LEN]) -> String {
        hash.iter().map(|octet| format!("{octet:02x}")).collect()
    }

    #[test]
    fn hashes_are_those_of_rfc_3174() {
        // Section 7.3, tests 1 and 2; the empty text; one that ends with its block.
        assert_eq!(hex(sha1([b"a", b"bc"])), "a9993e364706816aba3e25717850c26c9cd0d89d");
        let second = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
        assert_eq!(hex(sha1([second, b""])), "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
        assert_eq!(hex(sha1([b"", b""])), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
        let tens = b"0123456701234567012345670123456701234567012345670123456701234567";
        assert_eq!(hex(sha1([tens, b""])), "e0c094e867ef46c350ef54a7f59dd60bed92ae83");
        // As long as an input may be.
        let _ = sha1([&[7; 255], &[7; 255]]);
    }
}
