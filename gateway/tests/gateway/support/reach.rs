//! A client of the gateway, or of an apiserver before it.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{Error, Message};

/// Where it is and as whom it is asked.
#[derive(Clone)]
pub(crate) struct Reach {
    /// Where.
    pub(crate) address: SocketAddr,
    /// By which name of its certificate.
    pub(crate) name: String,
    /// What the client proves itself with.
    pub(crate) tls: Arc<ClientConfig>,
    /// Headers of each request.
    pub(crate) headers: Vec<(String, String)>,
}

/// A stream over it.
#[derive(Debug)]
pub(crate) struct Socket(WebSocketStream<TlsStream<TcpStream>>);

/// Everything that was said on the channels of the remote-command protocol.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    /// The last message.
    pub(crate) status: Option<Value>,
}

impl Reach {
    async fn connect(&self) -> TlsStream<TcpStream> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let name = ServerName::try_from(self.name.clone()).unwrap();
        let connector = TlsConnector::from(Arc::clone(&self.tls));
        connector.connect(name, stream).await.unwrap()
    }

    /// GETs `path`: the status, and the body as far as it came, and whether it came whole.
    pub(crate) async fn get(&self, path: &str) -> (u16, Vec<u8>, bool) {
        self.ask("GET", path).await
    }

    /// The same by another method.
    pub(crate) async fn ask(&self, method: &str, path: &str) -> (u16, Vec<u8>, bool) {
        let response = self.response(method, path).await;
        let status = response.status().as_u16();
        let mut body = response.into_body();
        let mut bytes = Vec::new();
        while let Some(frame) = body.frame().await {
            match frame {
                Ok(frame) => bytes.extend(frame.into_data().unwrap_or_default()),
                Err(_) => return (status, bytes, false),
            }
        }
        (status, bytes, true)
    }

    /// The beginning of a response.
    pub(crate) async fn response(&self, method: &str, path: &str) -> http::Response<Incoming> {
        let stream = self.connect().await;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        let mut request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("host", &self.name);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.body(Empty::<Bytes>::new()).unwrap();
        sender.send_request(request).await.unwrap()
    }

    /// A `WebSocket`; the error is the answer's status.
    pub(crate) async fn socket(&self, path: &str, protocol: &str) -> Result<Socket, u16> {
        let stream = self.connect().await;
        let uri = format!("wss://{}{path}", self.name);
        let mut request = uri.into_client_request().unwrap();
        let headers = request.headers_mut();
        for (name, value) in &self.headers {
            let name: http::HeaderName = name.parse().unwrap();
            headers.append(name, value.parse().unwrap());
        }
        headers.insert("sec-websocket-protocol", protocol.parse().unwrap());
        match tokio_tungstenite::client_async(request, stream).await {
            Ok((socket, _)) => Ok(Socket(socket)),
            Err(Error::Http(response)) => Err(response.status().as_u16()),
            Err(error) => panic!("{error}"),
        }
    }
}

impl Socket {
    /// Says a binary message.
    pub(crate) async fn say(&mut self, message: impl Into<Bytes>) {
        self.0.send(Message::Binary(message.into())).await.unwrap();
    }

    /// Says any message; whether the connection still stood.
    pub(crate) async fn try_say(&mut self, message: Message) -> bool {
        self.0.send(message).await.is_ok()
    }

    /// The next text or binary message; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Message> {
        loop {
            match self.0.next().await? {
                Ok(message @ (Message::Binary(_) | Message::Text(_))) => return Some(message),
                Ok(Message::Close(_)) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// Reads channels until `is_enough`, or to the end.
    pub(crate) async fn channels(
        &mut self,
        heard: &mut Channels,
        mut is_enough: impl FnMut(&Channels) -> bool,
    ) {
        while !is_enough(heard) {
            let Some(message) = self.next().await else {
                return;
            };
            let data = message.into_data();
            match data[0] {
                1 => heard.stdout.extend(&data[1..]),
                2 => heard.stderr.extend(&data[1..]),
                3 => heard.status = Some(serde_json::from_slice(&data[1..]).unwrap()),
                channel => panic!("channel {channel}"),
            }
        }
    }

    /// Reads channels to the end.
    pub(crate) async fn rest(mut self) -> Channels {
        let mut heard = Channels::default();
        self.channels(&mut heard, |_| false).await;
        heard
    }
}
