"""python -m tools.benchmarks.means_of_weights OUT SETS SPEC ...: SPEC = 'ckpt:wf[:ws] ckpt:wf[:ws] ...' weighted mean of weights (first, second). PSNR, aligned PSNR, LPIPS."""
import torch,sys,json
from pathlib import Path
torch.set_num_threads(1)
from deblur.pipeline import load_pipeline
from deblur.data.files import images
from deblur.evaluation.perceptual import Lpips
parts=[p.split(':') for p in sys.argv[3:]]
acc=None
for p in parts:
    net=load_pipeline(p[0],'cpu',precision='fp32').predictor; s=net.state_dict(); wf=float(p[1]); ws=float(p[2] if len(p)>2 else p[1])
    t={k:v.double()*(ws if k.startswith('second') else wf) for k,v in s.items()}
    acc=t if acc is None else {k:acc[k]+t[k] for k in t}
net.load_state_dict({k:v.float() for k,v in acc.items()}); net.eval()
L=Lpips('alex')
def ps(a,b): return -10*((a-b)[...,8:-8,8:-8]**2).mean().log10().item()
def moved(f,shape,dx,dy):
    h,w=shape; fy=torch.fft.fftfreq(h)[:,None]; fx=torch.fft.rfftfreq(w)
    return torch.fft.irfft2(f*torch.exp(-2j*torch.pi*(fx*dx+fy*dy)),(h,w))
def aligned(im,x):
    f=torch.fft.rfft2(im); best=(ps(im,x),0.,0.)
    for s in (1.0,.5,.25):
        imp=True
        while imp:
            imp=False
            for ex,ey in ((s,0),(-s,0),(0,s),(0,-s)):
                c=ps(moved(f,im.shape[-2:],best[1]+ex,best[2]+ey),x)
                if c>best[0]+.005: best=(c,best[1]+ex,best[2]+ey); imp=True
    return best[0]
N={'goprotest':8,'gopro':12,'straight':6,'shake_m':10,'raw_m':6}
out={}
for k,n in N.items():
    d=Path(sys.argv[2])/k; rows=[]
    for p in sorted((d/'blur').iterdir())[:n]:
        q=d/'sharp'/p.name
        if not q.exists(): q=next((d/'sharp').glob(p.stem+'.*'))
        x,y=images.read(q)[None],images.read(p)[None]; v=[]
        with torch.no_grad(),torch.autocast('cpu',torch.bfloat16):
            es=net.first.estimates(y*2-1)[0][::-1]; ims=[]
            for st in (0,2):
                e=es[st].float().clamp(-1,1); ims+=[e,net.second(y*2-1,e)[0].float()]
        for im in ims:
            im=((im+1)/2).clamp(0,1).float(); v+=[-10*((im-x)**2).mean().log10().item(), aligned(im,x), L(im,x).item()]
        rows.append(v)
    out[k]=torch.tensor(rows).mean(0).tolist()
    print(k.ljust(10),'  '.join(f'{out[k][3*i]:.2f}|{out[k][3*i+1]:.2f}|{out[k][3*i+2]:.4f}' for i in range(4)),flush=True)
json.dump(out,open(sys.argv[1],'w'))
