"""Pairs whose camera moves unevenly: still, then a jerk, as a held video camera does; the sharp image is the middle."""
import random, sys
import numpy as np, torch
from pathlib import Path
from PIL import Image
torch.set_num_threads(1)
rng=random.Random(761); out=Path(sys.argv[1])  # python -m tools.benchmarks.uneven_pairs OUT PHOTOS MORE_PHOTOS
files=[f for folder in sys.argv[2:] for f in sorted(Path(folder).iterdir())]
def kernel():
    L=rng.uniform(3,36); p=rng.uniform(1.0,4.0); turn=rng.gauss(0,.35); a=rng.uniform(0,2*np.pi)
    t=np.linspace(0,1,241); s=t**p
    if rng.random()<.5: s=1-(1-t)**p  # the jerk comes first
    if rng.random()<.3: s=.5*(s+t)
    ang=a+turn*s; x=np.concatenate([[0],np.cumsum(np.cos(ang[1:])*np.diff(s))])*L; y=np.concatenate([[0],np.cumsum(np.sin(ang[1:])*np.diff(s))])*L
    x-=x[120]; y-=y[120]; r=int(np.ceil(max(np.abs(x).max(),np.abs(y).max())))+1; k=np.zeros((2*r+1,2*r+1))
    for u,v in zip(x,y):
        i,j=int(np.floor(v)),int(np.floor(u)); fy,fx=v-i,u-j
        for di,wy in ((0,1-fy),(1,fy)):
            for dj,wx in ((0,1-fx),(1,fx)): k[r+i+di,r+j+dj]+=wy*wx
    return torch.from_numpy(k/k.sum()).float(), r
offs=[]
for n,f in enumerate(files):
    im=torch.from_numpy(np.array(Image.open(f).convert('RGB'))).permute(2,0,1)[None].float()/255
    if rng.random()<.85:
        g=rng.uniform(.4,.9); q=torch.arange(-3,4.); q=torch.exp(-q**2/(2*g*g)); q/=q.sum(); q=(q[:,None]*q).expand(3,1,7,7)
    else: q=None
    k,r=kernel(); side=256+2*r+6; h,w=im.shape[-2:]
    if min(h,w)<side: continue
    best=None
    for _ in range(2):
        y,x=rng.randrange(h-side+1),rng.randrange(w-side+1); c=im[...,y:y+side,x:x+side]
        d=c.diff(dim=3).square().mean().item()
        if best is None or d>best[0]: best=(d,c)
    c=best[1]; c=c[...,3:-3,3:-3] if q is None else torch.nn.functional.conv2d(c,q,groups=3)
    # conv2d correlates: flip, so that blur(p) = sum k(d) sharp(p - d)
    b=torch.nn.functional.conv2d(c,k.flip(0,1).expand(3,1,*k.shape),groups=3); s=c[...,r:-r,r:-r]
    gg=torch.arange(-r,r+1.); offs.append(float(((k.sum(0)*gg).sum()**2+(k.sum(1)*gg).sum()**2)**.5))
    for side_,t in (('blur',b),('sharp',s)):
        (out/side_).mkdir(parents=True,exist_ok=True); Image.fromarray((t[0].clamp(0,1)*255).round().byte().permute(1,2,0).numpy()).save(out/side_/f'{n:03d}_0.png')
print(len(offs),np.percentile(offs,[25,50,75,90]).round(2))
