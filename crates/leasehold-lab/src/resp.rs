//! A parser of the Redis protocol (RESP2 and RESP3).

/// No server accepts a longer value: a greater length is garbage.
const LENGTH_MAX: usize = 512 * 1024 * 1024;

/// The first bytes of messages.
const KINDS: &[u8] = b"+-:_#,($!=*~>%|";

/// The first byte of a TLS connection, with which no request begins.
const TLS_HANDSHAKE: u8 = 0x16;

/// The reason why bytes hold no whole message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotWhole {
    More,
    Garbage,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// A status such as `OK`; also a double or a big number.
    Status(String),
    /// An error with its code: `NOPERM …`.
    Error(String),
    /// An integer; also a boolean as 1 or 0.
    Int(i64),
    Bulk(Vec<u8>),
    Nil,
    /// An array or a set; also a map as alternating keys and values.
    Array(Vec<Reply>),
    /// An out-of-band message (RESP3).
    Push(Vec<Reply>),
}

impl Reply {
    pub fn is_ok(&self) -> bool {
        matches!(self, Reply::Status(text) if text == "OK")
    }

    pub fn text(&self) -> Option<&str> {
        match self {
            Reply::Status(text) => Some(text),
            Reply::Bulk(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    pub fn int(&self) -> Option<i64> {
        match self {
            Reply::Int(n) => Some(*n),
            _ => None,
        }
    }

    pub fn error(&self) -> Option<&str> {
        match self {
            Reply::Error(text) => Some(text),
            _ => None,
        }
    }

    /// Takes a reply or a push off the front of the bytes, or takes nothing.
    pub(crate) fn take(bytes: &mut &[u8]) -> Result<Reply, NotWhole> {
        let mut rest = *bytes;
        let reply = Reply::parse(&mut rest)?;
        *bytes = rest;
        Ok(reply)
    }

    fn parse(bytes: &mut &[u8]) -> Result<Reply, NotWhole> {
        let kind = *bytes.first().ok_or(NotWhole::More)?;
        // Checked before the search for the line end, which garbage may not have.
        if !KINDS.contains(&kind) {
            return Err(NotWhole::Garbage);
        }
        let end = bytes.windows(2).position(|pair| pair == b"\r\n").ok_or(NotWhole::More)?;
        let (line, rest) = (&bytes[1..end], &bytes[end + 2..]);
        *bytes = rest;
        let text = || String::from_utf8_lossy(line).into_owned();
        let number = || text().parse::<i64>().map_err(|_| NotWhole::Garbage);
        match kind {
            b'+' | b',' | b'(' => return Ok(Reply::Status(text())),
            b'-' => return Ok(Reply::Error(text())),
            b':' => return Ok(Reply::Int(number()?)),
            b'#' => return Ok(Reply::Int(i64::from(line == b"t"))),
            b'_' => return Ok(Reply::Nil),
            _ => {}
        }
        let length = match number()? {
            -1 => return Ok(Reply::Nil),
            length => usize::try_from(length).ok().filter(|length| *length <= LENGTH_MAX),
        };
        let length = length.ok_or(NotWhole::Garbage)?;
        Ok(match kind {
            b'$' => Reply::Bulk(Reply::value(bytes, length)?.to_vec()),
            // The first four bytes are the format of the text.
            b'=' => Reply::Bulk(Reply::value(bytes, length)?.get(4..).unwrap_or_default().to_vec()),
            b'!' => Reply::Error(String::from_utf8_lossy(Reply::value(bytes, length)?).into_owned()),
            b'>' => Reply::Push(Reply::several(bytes, length)?),
            b'%' => Reply::Array(Reply::several(bytes, 2 * length)?),
            // An attribute precedes its reply.
            b'|' => {
                Reply::several(bytes, 2 * length)?;
                Reply::parse(bytes)?
            }
            _ => Reply::Array(Reply::several(bytes, length)?),
        })
    }

    fn value<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8], NotWhole> {
        let value = bytes.split_off(..length + 2).ok_or(NotWhole::More)?;
        Ok(&value[..length])
    }

    fn several(bytes: &mut &[u8], count: usize) -> Result<Vec<Reply>, NotWhole> {
        (0..count).map(|_| Reply::parse(bytes)).collect()
    }
}

/// Takes a request (an array or an inline command) off the front of the bytes, or takes nothing.
/// Returns the command in capitals; empty for an empty request, which servers do not answer.
pub(crate) fn take_request(bytes: &mut &[u8]) -> Result<String, NotWhole> {
    let word = match bytes.first() {
        Some(b'*') => match Reply::take(bytes)? {
            Reply::Array(args) => args.first().and_then(Reply::text).unwrap_or_default().to_owned(),
            _ => String::new(),
        },
        Some(&TLS_HANDSHAKE) => return Err(NotWhole::Garbage),
        _ => {
            let end = bytes.iter().position(|byte| *byte == b'\n').ok_or(NotWhole::More)?;
            let line = String::from_utf8_lossy(&bytes[..end]).into_owned();
            *bytes = &bytes[end + 1..];
            line.split_ascii_whitespace().next().unwrap_or_default().to_owned()
        }
    };
    Ok(word.to_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(mut bytes: &[u8]) -> Option<Reply> {
        let reply = Reply::take(&mut bytes).ok();
        assert!(bytes.is_empty(), "left over: {}", bytes.escape_ascii());
        reply
    }

    #[test]
    fn every_kind_of_answer_is_understood() {
        assert_eq!(taken(b"+OK\r\n"), Some(Reply::Status("OK".to_owned())));
        assert_eq!(taken(b"-NOPERM no\r\n"), Some(Reply::Error("NOPERM no".to_owned())));
        assert_eq!(taken(b"!5\r\nERR x\r\n"), Some(Reply::Error("ERR x".to_owned())));
        assert_eq!(taken(b":-3\r\n"), Some(Reply::Int(-3)));
        assert_eq!(taken(b"#t\r\n"), Some(Reply::Int(1)));
        assert_eq!(taken(b"$3\r\na\r\n\r\n"), Some(Reply::Bulk(b"a\r\n".to_vec())));
        assert_eq!(taken(b"=7\r\ntxt:abc\r\n"), Some(Reply::Bulk(b"abc".to_vec())));
        for nil in [&b"$-1\r\n"[..], b"*-1\r\n", b"_\r\n"] {
            assert_eq!(taken(nil), Some(Reply::Nil));
        }
        let pair = vec![Reply::Status("a".to_owned()), Reply::Int(1)];
        assert_eq!(taken(b"*2\r\n+a\r\n:1\r\n"), Some(Reply::Array(pair.clone())));
        assert_eq!(taken(b"%1\r\n+a\r\n:1\r\n"), Some(Reply::Array(pair.clone())));
        assert_eq!(taken(b">2\r\n+a\r\n:1\r\n"), Some(Reply::Push(pair)));
        assert_eq!(taken(b"|1\r\n+a\r\n:1\r\n:2\r\n"), Some(Reply::Int(2)));
    }

    const REPLIES: &[&[u8]] = &[
        b"+OK\r\n",
        b"-ERR no\r\n",
        b":-12\r\n",
        b"$-1\r\n",
        b"$0\r\n\r\n",
        b"$4\r\na\r\nb\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*2\r\n*1\r\n:1\r\n$1\r\nx\r\n",
        b"%1\r\n+key\r\n*2\r\n:1\r\n_\r\n",
        b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$0\r\n\r\n",
        b"|1\r\n+ttl\r\n:3\r\n$1\r\nx\r\n",
        b"#t\r\n",
        b",1.5\r\n",
    ];

    #[test]
    fn a_reply_ends_where_it_ends_and_no_byte_earlier() {
        for whole in REPLIES {
            for cut in 0..whole.len() {
                let cut = &whole[..cut];
                assert_eq!(Reply::take(&mut &*cut), Err(NotWhole::More), "{:?}", cut.escape_ascii());
            }
            let two = [*whole, *whole].concat();
            let mut rest = &two[..];
            assert!(Reply::take(&mut rest).is_ok(), "{:?}", whole.escape_ascii());
            assert_eq!(rest, *whole);
        }
    }

    #[test]
    fn requests_are_known_by_their_command() {
        for (text, name) in [
            ("*2\r\n$3\r\nget\r\n$1\r\na\r\n", "GET"),
            ("PING\r\n", "PING"),
            ("  set a b\n", "SET"),
            ("\r\n", ""),
            ("*0\r\n", ""),
        ] {
            let mut bytes = text.as_bytes();
            assert_eq!(take_request(&mut bytes).as_deref(), Ok(name), "{text:?}");
            assert!(bytes.is_empty(), "{text:?}");
        }
    }

    #[test]
    fn garbage_is_told_from_what_is_not_there_yet() {
        for garbage in [&b"hello\r\n"[..], b"*x\r\n", b"$99999999999\r\n", b"\r\n", b"\x16\x03\x01"] {
            assert_eq!(Reply::take(&mut &*garbage), Err(NotWhole::Garbage), "{}", garbage.escape_ascii());
        }
        assert_eq!(take_request(&mut &b"\x16\x03\x01"[..]), Err(NotWhole::Garbage));
    }
}
