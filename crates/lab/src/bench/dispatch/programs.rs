//! The programs whose poll points are measured: each compiled as it is, and with
//! `#[tailwater::preemptible]`.
//!
//! Owns their code and their input. None polls by hand or allocates in its loops.
//!
//! Each is compiled [`COPIES`] times: where its code lies by chance relative to cache lines makes a
//! tight loop up to twice as slow, and a parser by a tenth, with poll points or without.

/// A version of a program.
pub type Run = fn(&Input) -> u64;

/// Compilations of each program.
pub const COPIES: usize = 6;

/// Compiles programs without and with poll points, once for each name.
macro_rules! compile {
    ([$($copy:ident)*] $code:tt) => {
        $(compile!(@ $copy $code);)*
        fn copies(of: impl Fn(&Versions) -> (Run, Run)) -> [(Run, Run); COPIES] {
            [$(of(&$copy::VERSIONS)),*]
        }
    };
    (@ $copy:ident { $($code:item)* }) => {
        mod $copy {
            use super::{Input, Versions};

            /// Keeps the compiler from making one of equal functions.
            const COPY: &str = stringify!($copy);

            pub const VERSIONS: Versions = Versions {
                monte_carlo: (plain::monte_carlo, polled::monte_carlo),
                sha256: (plain::sha256, polled::sha256),
                json: (plain::json, polled::json),
                scan: (plain::scan, polled::scan),
                sum: (plain::sum, polled::sum),
            };

            mod plain {
                use super::{COPY, Input};
                $($code)*
            }
            #[tailwater::preemptible]
            mod polled {
                use super::{COPY, Input};
                $($code)*
            }
        }
    };
}

/// The programs without and with poll points.
struct Versions {
    monte_carlo: (Run, Run),
    sha256: (Run, Run),
    json: (Run, Run),
    scan: (Run, Run),
    sum: (Run, Run),
}

/// One program: its name, and the copies of its two versions, which return the same.
pub struct Program {
    pub name: &'static str,
    pub copies: [(Run, Run); COPIES],
}

/// Returns the programs.
pub fn programs() -> [Program; 5] {
    [
        Program { name: "monte_carlo", copies: copies(|versions| versions.monte_carlo) },
        Program { name: "sha256", copies: copies(|versions| versions.sha256) },
        Program { name: "json", copies: copies(|versions| versions.json) },
        Program { name: "scan", copies: copies(|versions| versions.scan) },
        Program { name: "sum", copies: copies(|versions| versions.sum) },
    ]
}

/// What the programs work on.
pub struct Input {
    pub bytes: Vec<u8>,
    pub document: Vec<u8>,
    pub numbers: Vec<u64>,
    pub block: Vec<u8>,
}

impl Input {
    /// Makes the same input each time.
    pub fn new() -> Self {
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        let bytes = (0..1 << 18).map(|_| random() as u8).collect();
        let numbers = (0..1 << 16).map(|_| random()).collect();
        let mut document = String::from("[");
        for id in 0..2_000 {
            let (price, stock) = (random() % 100_000, random() % 2 == 0);
            document += &format!(
                r#"{{"id": {id}, "name": "item \"{id}\"", "price": {price}.25, "stock": {stock}, "sizes": [1, -2, 3e4, null]}},"#
            );
        }
        document += "{}]";
        let mut block = Vec::new();
        for id in 0..10_000u32 {
            let key = format!("user{id:010}:profile");
            let shared = if id % 16 == 0 { 0 } else { 10 };
            let value: Vec<u8> = (0..random() % 150).map(|_| random() as u8).collect();
            for length in [shared, key.len() - shared, value.len()] {
                if length < 128 {
                    block.push(length as u8);
                } else {
                    block.extend([length as u8 | 128, (length >> 7) as u8]);
                }
            }
            block.extend(&key.as_bytes()[shared..]);
            block.extend(value);
        }
        Self { bytes, document: document.into_bytes(), numbers, block }
    }
}

compile! { [first second third fourth fifth sixth] {
    /// SHA-256 of the bytes (FIPS 180-4), the first 64 bits.
    pub fn sha256(input: &Input) -> u64 {
        std::hint::black_box(COPY);
        let constants = constants();
        let mut state = initial();
        for block in input.bytes.chunks_exact(64) {
            compress(&mut state, block, &constants);
        }
        let mut last = [0; 64];
        last[0] = 0x80;
        last[56..].copy_from_slice(&(8 * input.bytes.len() as u64).to_be_bytes());
        compress(&mut state, &last, &constants);
        u64::from(state[0]) << 32 | u64::from(state[1])
    }

    fn compress(state: &mut [u32; 8], block: &[u8], constants: &[u32; 64]) {
        let mut w = [0u32; 64];
        for (word, bytes) in w.iter_mut().zip(block.chunks_exact(4)) {
            *word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        for i in 16..64 {
            let s0 = w[i - 15].rotate_right(7) ^ w[i - 15].rotate_right(18) ^ (w[i - 15] >> 3);
            let s1 = w[i - 2].rotate_right(17) ^ w[i - 2].rotate_right(19) ^ (w[i - 2] >> 10);
            w[i] = w[i - 16].wrapping_add(s0).wrapping_add(w[i - 7]).wrapping_add(s1);
        }
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
        for (constant, word) in constants.iter().zip(&w) {
            let s1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
            let choice = (e & f) ^ (!e & g);
            let t1 = h.wrapping_add(s1).wrapping_add(choice).wrapping_add(*constant).wrapping_add(*word);
            let s0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
            let t2 = s0.wrapping_add((a & b) ^ (a & c) ^ (b & c));
            (h, g, f, e, d, c, b, a) = (g, f, e, d.wrapping_add(t1), c, b, a, t1.wrapping_add(t2));
        }
        for (word, add) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
            *word = word.wrapping_add(add);
        }
    }

    /// Fractional parts of the cube roots of the first 64 primes.
    fn constants() -> [u32; 64] {
        let mut constants = [0; 64];
        let mut prime = 1;
        for constant in &mut constants {
            prime = next_prime(prime);
            *constant = root_fraction(prime, 3);
        }
        constants
    }

    /// Fractional parts of the square roots of the first 8 primes.
    fn initial() -> [u32; 8] {
        let mut initial = [0; 8];
        let mut prime = 1;
        for word in &mut initial {
            prime = next_prime(prime);
            *word = root_fraction(prime, 2);
        }
        initial
    }

    fn next_prime(after: u128) -> u128 {
        let mut candidate = after + 1;
        while (2..candidate).any(|divisor| candidate.is_multiple_of(divisor)) {
            candidate += 1;
        }
        candidate
    }

    /// The first 32 bits of the fraction of the `degree`th root: of the integer root of
    /// `number * 2^(32 * degree)`.
    fn root_fraction(number: u128, degree: u32) -> u32 {
        let scaled = number << (32 * degree);
        let (mut low, mut high) = (0u128, 1u128 << 36);
        while high - low > 1 {
            let middle = low.midpoint(high);
            if middle.pow(degree) <= scaled {
                low = middle;
            } else {
                high = middle;
            }
        }
        low as u32
    }

    /// Parses the document; returns the number of its values, and a sum over them.
    pub fn json(input: &Input) -> u64 {
        std::hint::black_box(COPY);
        let mut parser = Parser { text: &input.document, at: 0, values: 0, sum: 0 };
        parser.value();
        parser.values << 32 ^ parser.sum
    }

    struct Parser<'t> {
        text: &'t [u8],
        at: usize,
        values: u64,
        sum: u64,
    }

    impl Parser<'_> {
        fn peek(&mut self) -> u8 {
            while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
                self.at += 1;
            }
            self.text.get(self.at).copied().unwrap_or(0)
        }

        fn value(&mut self) {
            self.values += 1;
            match self.peek() {
                b'{' => self.members(true, b'}'),
                b'[' => self.members(false, b']'),
                b'"' => self.string(),
                b'-' | b'0'..=b'9' => self.number(),
                _ => self.word(),
            }
        }

        fn members(&mut self, named: bool, end: u8) {
            self.at += 1;
            while self.peek() != end {
                if named {
                    self.string();
                    self.peek();
                    self.at += 1;
                    self.peek();
                }
                self.value();
                if self.peek() == b',' {
                    self.at += 1;
                }
            }
            self.at += 1;
        }

        fn string(&mut self) {
            self.at += 1;
            while let Some(&byte) = self.text.get(self.at) {
                self.at += 1;
                match byte {
                    b'"' => return,
                    b'\\' => self.at += 1,
                    other => self.sum = self.sum.wrapping_mul(31).wrapping_add(u64::from(other)),
                }
            }
        }

        fn number(&mut self) {
            let mut number = 0u64;
            while let Some(byte @ (b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9')) = self.text.get(self.at) {
                number = number.wrapping_mul(10).wrapping_add(u64::from(*byte));
                self.at += 1;
            }
            self.sum ^= number;
        }

        fn word(&mut self) {
            while self.text.get(self.at).is_some_and(u8::is_ascii_alphabetic) {
                self.at += 1;
            }
        }
    }

    /// Simulates forward-rate paths under two factors, as a pricer of swaptions does.
    pub fn monte_carlo(input: &Input) -> u64 {
        std::hint::black_box(COPY);
        const RATES: usize = 48;
        let (drift, volatility) = ([1e-6; RATES], [[3e-4; RATES], [1e-4; RATES]]);
        let mut total = 0.0;
        for path in 0..200usize {
            let mut curve = [0.02; RATES];
            let mut discount = 0.0;
            for step in 0..RATES - 1 {
                discount += curve[step];
                let mut normals = [0.0; 2];
                for (factor, normal) in normals.iter_mut().enumerate() {
                    // Twelve uniform numbers are nearly a normal one.
                    let from = (path * RATES + step) * 24 % 200_000 + 12 * factor;
                    let mut sum = -6.0;
                    for byte in &input.bytes[from..from + 12] {
                        sum += f64::from(*byte) / 256.0;
                    }
                    *normal = sum;
                }
                let rates = &mut curve[step + 1..];
                for (rate, drift) in rates.iter_mut().zip(&drift) {
                    *rate += drift;
                }
                for (factor, normal) in volatility.iter().zip(normals) {
                    for (rate, volatility) in rates.iter_mut().zip(factor) {
                        *rate += volatility * normal;
                    }
                }
            }
            total += (-discount).exp() * curve[RATES - 1].max(0.0);
        }
        total.to_bits()
    }

    /// Walks sorted entries as a store's SCAN does: each has the length of the key's part that it
    /// shares with the one before, the rest of the key, and a value. Returns a sum over those whose
    /// keys are below a bound.
    pub fn scan(input: &Input) -> u64 {
        std::hint::black_box(COPY);
        let bound = b"user0000009990";
        let mut key = [0u8; 64];
        let (mut rest, mut sum) = (&input.block[..], 0u64);
        while !rest.is_empty() {
            let (shared, unshared, length) = (number(&mut rest), number(&mut rest), number(&mut rest));
            let Some((suffix, after)) = rest.split_at_checked(unshared) else { break };
            let Some((value, after)) = after.split_at_checked(length) else { break };
            key[shared..shared + unshared].copy_from_slice(suffix);
            rest = after;
            if key[..shared + unshared] >= bound[..] {
                break;
            }
            for byte in value {
                sum += u64::from(*byte);
            }
        }
        sum
    }

    /// Takes a number of seven bits a byte from the text.
    fn number(rest: &mut &[u8]) -> usize {
        let (mut number, mut shift) = (0, 0);
        while let Some((byte, after)) = rest.split_first() {
            *rest = after;
            number |= usize::from(byte & 127) << shift;
            shift += 7;
            if byte & 128 == 0 {
                break;
            }
        }
        number
    }

    /// Adds numbers: the tightest of loops, in vector code.
    pub fn sum(input: &Input) -> u64 {
        std::hint::black_box(COPY);
        let mut sum = 0u64;
        for number in &input.numbers {
            sum = sum.wrapping_add(*number);
        }
        sum
    }
} }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_return_the_same_and_the_hash_is_sha_256() {
        let input = Input::new();
        for program in programs() {
            let expected = program.copies[0].0(&input);
            for (plain, polled) in program.copies {
                assert_eq!((plain(&input), polled(&input)), (expected, expected), "{}", program.name);
            }
        }
        // The padding of an empty message is one block.
        let empty = Input { bytes: Vec::new(), ..Input::new() };
        assert_eq!((first::VERSIONS.sha256.0)(&empty), 0xe3b0_c442_98fc_1c14);
    }
}
