package ete.client;

/**
 * PEM. What is null is not given: without root certificates those of Java count; certificate and key (PKCS #8) are for servers
 * that ask who calls; the server's name is for one whose certificate has another than the address.
 */
public record Tls(byte[] rootCertificates, byte[] certificate, byte[] privateKey, String serverName) {
  public Tls {
    if ((certificate == null) != (privateKey == null)) {
      throw new IllegalArgumentException("tls: certificate and private key belong together");
    }
  }
}
