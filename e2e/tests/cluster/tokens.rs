//! A token server for a registry (distribution's token authentication): tokens signed by a key of its own, for one user.

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use cloche_e2e::registry::Guard;
use jiff::Timestamp;
use rcgen::{CertificateParams, KeyPair, SigningKey as _};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// How long a token holds, in seconds.
const LIFE: i64 = 300;

/// Gives tokens to one user until it is dropped.
pub(crate) struct Tokens {
    address: String,
    certificate: String,
    task: AbortHandle,
}

impl Tokens {
    /// For the user `user:password`, to pull `repository`.
    pub(crate) async fn start(user: &str, repository: &str) -> Result<Self> {
        let key = KeyPair::generate().context("make a key")?;
        let made = CertificateParams::new(vec!["tokens".to_owned()])
            .and_then(|params| params.self_signed(&key))
            .context("make a certificate")?;
        let wanted = format!("authorization: Basic {}\r\n", BASE64_STANDARD.encode(user));
        let token = token(&key, made.der(), repository)?;
        let given = json!({"token": token}).to_string();
        let listener = TcpListener::bind("127.0.0.1:0").await.context("listen")?;
        let address = listener.local_addr().context("its port")?.to_string();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, wanted.clone(), given.clone()));
            }
        });
        Ok(Self {
            address,
            certificate: made.pem(),
            task: task.abort_handle(),
        })
    }

    /// `127.0.0.1:PORT`.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Of a registry that takes these tokens.
    pub(crate) fn guard(&self) -> Guard {
        Guard::Tokens {
            realm: format!("http://{}/token", self.address),
            certificate: self.certificate.clone(),
        }
    }
}

impl Drop for Tokens {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(mut stream: TcpStream, wanted: String, given: String) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).ok()?;
    let (status, body) = if head.contains(&wanted) {
        ("200 OK", given.as_str())
    } else {
        ("401 Unauthorized", "")
    };
    let reply = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(reply.as_bytes()).await.ok()
}

/// A JSON web token (RFC 7519) with the claims that registries look at.
fn token(key: &KeyPair, certificate: &[u8], repository: &str) -> Result<String> {
    let now = Timestamp::now().as_second();
    let header =
        json!({"typ": "JWT", "alg": "ES256", "x5c": [BASE64_STANDARD.encode(certificate)]});
    let claims = json!({
        "iss": "test", "aud": "test", "sub": "ann", "jti": "1", "iat": now, "nbf": now - LIFE, "exp": now + LIFE,
        "access": [{"type": "repository", "name": repository, "actions": ["pull"]}],
    });
    let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", part(&header), part(&claims));
    let signature = key.sign(signed.as_bytes()).context("sign a token")?;
    let signature = BASE64_URL_SAFE_NO_PAD.encode(plain(&signature)?);
    Ok(format!("{signed}.{signature}"))
}

/// Both numbers of a signature, 32 bytes each (RFC 7518, 3.4), of their DER: a sequence of two integers.
fn plain(der: &[u8]) -> Result<Vec<u8>> {
    let mut rest = der.get(2..).context("a signature")?;
    let mut both = Vec::new();
    for _ in 0..2 {
        let length = usize::from(*rest.get(1).context("a number")?);
        let number = rest.get(2..2 + length).context("a whole number")?;
        rest = &rest[2 + length..];
        let zeroes = number.iter().take_while(|byte| **byte == 0).count();
        let number = &number[zeroes..];
        ensure!(number.len() <= 32, "a number of P-256");
        both.extend(std::iter::repeat_n(0, 32 - number.len()));
        both.extend_from_slice(number);
    }
    Ok(both)
}
