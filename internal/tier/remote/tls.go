package remote

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// TLS is how a server proves who it is, and, with CertFile, the client. The zero value trusts
// the system's authorities.
type TLS struct {
	CAFile     string // PEM, instead of the system's authorities
	CertFile   string // PEM, the client's certificate; with KeyFile
	KeyFile    string
	ServerName string // instead of the address' host
	Insecure   bool   // any server will do
}

// Config reads the files.
func (t *TLS) Config() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName, InsecureSkipVerify: t.Insecure}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read the authorities: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s holds no certificate in PEM form", t.CAFile)
		}
	}
	if t.CertFile != "" || t.KeyFile != "" {
		cert, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("read the client's certificate: %w", err)
		}
		config.Certificates = []tls.Certificate{cert}
	}
	return config, nil
}
