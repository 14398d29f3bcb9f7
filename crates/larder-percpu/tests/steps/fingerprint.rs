//! Hashes of 128 bits, by which states are known again: two lanes that are mixed independently.

use std::hash::Hasher;

/// A hash of two independent lanes; states are hashed by the million.
pub struct Lanes(u64, u64);

impl Lanes {
    /// Both.
    pub fn both(&self) -> (u64, u64) {
        (self.0, self.1)
    }
}

impl Default for Lanes {
    fn default() -> Self {
        Self(0x9e37_79b9_7f4a_7c15, 0xd1b5_4a32_d192_ed03)
    }
}

impl Hasher for Lanes {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }
    fn write_u8(&mut self, n: u8) {
        self.write_u64(n.into());
    }
    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(29) ^ n).wrapping_mul(0x2545_f491_4f6c_dd1d);
        self.1 = (self.1.rotate_left(37) ^ n).wrapping_mul(0xda94_2042_e4dd_58b5);
        self.0 ^= self.0 >> 32;
        self.1 ^= self.1 >> 29;
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

/// Fingerprints are hashes already.
#[derive(Default)]
pub struct AsIs(u64);

impl Hasher for AsIs {
    fn write(&mut self, _: &[u8]) {
        unreachable!("a fingerprint is two words");
    }
    fn write_u64(&mut self, n: u64) {
        self.0 ^= n;
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

/// Two independent numbers for a word at a place.
pub fn mixed(place: u64, value: u64) -> (u64, u64) {
    let mut lanes = Lanes::default();
    lanes.write_u64(place);
    lanes.write_u64(value);
    lanes.write_u64(place);
    lanes.both()
}
