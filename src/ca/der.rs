//! As much of DER (ITU-T X.690) as a trust store takes.

/// One value: its tag, its length in the shortest form, its contents.
pub(super) fn value(tag: u8, contents: &[u8]) -> Vec<u8> {
    let mut der = vec![tag];
    match u8::try_from(contents.len()) {
        Ok(length @ ..0x80) => der.push(length),
        _ => {
            let length = contents.len().to_be_bytes();
            let length = &length[length.iter().take_while(|byte| **byte == 0).count()..];
            der.push(0x80 | u8::try_from(length.len()).expect("a length has at most 8 bytes"));
            der.extend_from_slice(length);
        }
    }
    der.extend_from_slice(contents);
    der
}

/// Values one after the other.
pub(super) fn sequence<const N: usize>(parts: [Vec<u8>; N]) -> Vec<u8> {
    value(SEQUENCE, &parts.concat())
}

/// Values in the order of their encodings.
pub(super) fn set<const N: usize>(mut parts: [Vec<u8>; N]) -> Vec<u8> {
    parts.sort();
    value(SET, &parts.concat())
}

/// `[0] EXPLICIT`.
pub(super) fn tagged(inner: &[u8]) -> Vec<u8> {
    value(CONTEXT_0, inner)
}

/// An object identifier, from the encoding of its arcs.
pub(super) fn oid(arcs: &[u8]) -> Vec<u8> {
    value(OID, arcs)
}

/// Bytes.
pub(super) fn octets(bytes: &[u8]) -> Vec<u8> {
    value(OCTET_STRING, bytes)
}

/// A whole number.
pub(super) fn integer(number: u32) -> Vec<u8> {
    let bytes = number.to_be_bytes();
    let significant = &bytes[bytes.iter().take(3).take_while(|byte| **byte == 0).count()..];
    // A first bit of 1 would make it negative.
    let sign: &[u8] = if significant[0] >= 0x80 { &[0] } else { &[] };
    value(INTEGER, &[sign, significant].concat())
}

/// `NULL`.
pub(super) fn null() -> Vec<u8> {
    value(NULL, &[])
}

/// A text in UTF-16.
pub(super) fn bmp_string(text: &str) -> Vec<u8> {
    value(BMP_STRING, &text.encode_utf16().flat_map(u16::to_be_bytes).collect::<Vec<u8>>())
}

const INTEGER: u8 = 0x02;
const OCTET_STRING: u8 = 0x04;
const NULL: u8 = 0x05;
const OID: u8 = 0x06;
const BMP_STRING: u8 = 0x1e;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const CONTEXT_0: u8 = 0xa0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_numbers_take_the_shortest_form() {
        assert_eq!(octets(&[7; 127])[..2], [4, 127]);
        assert_eq!(octets(&[7; 128])[..3], [4, 0x81, 128]);
        assert_eq!(octets(&[7; 300])[..4], [4, 0x82, 1, 44]);
        assert_eq!(integer(0), [2, 1, 0]);
        assert_eq!(integer(127), [2, 1, 127]);
        assert_eq!(integer(128), [2, 2, 0, 128]);
        assert_eq!(integer(10_000), [2, 2, 0x27, 0x10]);
    }
}
